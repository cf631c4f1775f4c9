"""Telemetry on a compute node: read at moments that all nodes share, kept until it is stored.

- `steadytime`: the servers' time, counted on by the kernel: what moments are named by
- `sampling`: jobs that come and go → moments → readings → snapshots
- `rows`: a snapshot as numbers in a line, for what is kept
- `buffer`, `sending`: rows on their way to the servers
- `stamps`, `straight`: or straight to the metric store, where the site trusts its nodes
- `told`: what servers say of the node's jobs: modes and GPUs
- `sights`, `feed`: the newest snapshots, judged, and the answer to a server that looks
"""
