"""Nodes: the cluster's nodes, their states, and taking them out of service.

Data path    slurmctld ─ poll ─► live snapshot ┐
             etcd ─ links, records ─► presence ┴► service.
             service ─► operations ─► command ─► render.
             operation ─► scontrol update, as the server's user ─► slurmctld.
States       Slurm's state, unless it is "ready" and the agent's link is lost. Then the node is
             degraded after 30 s and down after 90 s. Both states are shown.
Bounds       One snapshot serves all callers. A node lists the caller's own allocations, no others.
             An act applies to all named nodes or to none, and only to nodes that exist.
When down    The last snapshot is served with its age; a node that is not in it returns 503. Without
             the state store no agent counts as lost, and the last known data has its age.
Promises     ALLOC-6, ALLOC-7, OPS-4.
"""
