"""Telemetry: how often jobs are sampled, and how samples reach the metric store.

Data path    node ─► StreamSamples ─► service.node_series ─► service.intake
             ─► service.sample_writer ─► MetricStore. Older agents: StoreSamples ─► service.intake.
             command ─► operations ─► REST | gRPC ─► service.mode_switch ─► service.modes.
             ─► StateStore ─► service.job_settings_publisher ─► FollowJobs ─► node.
             service.node_snapshots ─► NodeStreams ─► node, for current values.
             If a site trusts its nodes: FollowJobs ─► node.job_settings ─► node.direct_write
             ─► the metric store, without the servers.
Bounds       200 000 samples wait for the store. A node declares 16 384 series on its one stream.
             20 000 allocations have a switched mode, and the site limits how many are in debug. A
             follower is at most 1 000 messages behind; then the newest of each node is kept, and
             every alert.
When down    Without the metric store nodes keep 15 minutes of samples; current values do not need
             it. Without the state store modes stay as they are and can't be switched (503). Without
             Slurm samples of known jobs are stored, and nodes keep the others.
Promises     SRC-1, SRC-2, TOP-2, WATCH-1, WATCH-3.
"""
