"""The server's side of telemetry.

sample_guard, node_series ─► intake               samples, checked and labelled.
intake ─► sample_writer ─► port MetricStore       written, many nodes' together.
modes ◄► port StateStore                          the modes of allocations, shared by all servers.
job_settings_publisher                            the settings of each node's jobs.
node_snapshots, node_follow ─► port NodeStreams   current values from nodes.
"""
