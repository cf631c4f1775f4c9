"""The server's side of telemetry.

intake ─► sample_writer ─► port MetricStore       samples, checked, labelled and written.
modes ◄► port StateStore                          the modes of allocations, shared by all servers.
job_settings_publisher                            the settings of each node's jobs.
node_snapshots, node_follow ─► port NodeStreams   current values from nodes.
"""
