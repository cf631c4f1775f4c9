"""Telemetry on a compute node: sampled at times that all nodes share, kept until it is stored.

- `steadytime`: the servers' time, advanced by the kernel's monotonic clock
- `plan`, `sampler`: jobs → sampling times → readings → snapshots
- `buffer`, `row_messages`, `sender`: snapshots as rows of numbers, on their way to the servers
- `direct_write`: or directly to the metric store, if the site trusts its nodes
- `job_settings`: the servers' settings for the node's jobs: modes, GPUs and owners' labels
- `snapshots`, `feed`: the newest snapshots with alerts, and the answers to servers
- `exposition`: the newest snapshots as a Prometheus page
"""
