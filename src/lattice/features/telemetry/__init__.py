"""Telemetry: how closely jobs are measured, and how what nodes measure reaches the metric store.

Data path    node ─► StoreSamples ─► service.intake (whose is it?) ─► service.writing ─► port
             MetricStore; command ─► api ─► http | rpc ─► service.switching ─► service.modes ─► port
             StateStore ─► service.telling ─► FollowJobs ─► node; service.looks ─► port NodeStreams
             ─► node, for what is measured right now. Where a site trusts its nodes: FollowJobs ─►
             node.stamps ─► node.straight ─► the store, not over the servers.
Bounds       200 000 samples wait for the store; 20 000 allocations are switched, as many as the
             site allows are in debug; a follower is 1 000 pieces of news behind at most, and an
             alert is never dropped.
When down    without the metric store nodes keep 15 minutes; looks and follows go on, they don't
             use it. Without the agreed state modes stay as they were and can't be switched (503).
             Slurm away: samples of jobs that are known go on, others are kept by their nodes.
Promises     SRC-1, SRC-2, TOP-2, WATCH-1, WATCH-3.
"""
