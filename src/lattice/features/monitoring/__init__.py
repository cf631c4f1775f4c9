"""Monitoring: the cluster's jobs, nodes, agents and certificates as series, for operators.

Data path    snapshots of Slurm and the state ─► service ─► own metrics ─► `GET /metrics`.
             The page is that of the health feature, and of the listener `api.metrics_listen`.
Bounds       A scrape reads what was counted, every 10 s, in slices that hold the loop for
             milliseconds. Every label has a bound. Names of jobs are never shown; accounts, users
             and projects only with `api.metrics_names`.
When down    Slurm or the agreed state: their series are absent. A certificate that can't be read:
             its series is absent.
Promises     OPS-8.
"""
