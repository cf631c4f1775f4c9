"""Nodes: what the cluster is made of, the state of each part, and taking parts out of service.

Data path    slurmctld ─ poll ─► live reading ┐
             etcd ─ links, records ─► presence ┴► service ─► http | rpc ─► api ─► command ─► render
             operation ─► scontrol update, as the server's user ─► slurmctld
States       Slurm's word, unless it is "ready" and the agent's link is lost: then degraded after
             30 s and down after 90 s. Both truths are shown.
Bounds       one reading serves all callers; a node names the caller's own allocations, no others;
             an act is for all nodes named or for none, and names only nodes that exist.
When down    the last reading is served with its age; a node it does not hold is 503 meanwhile.
             While the agreed state is away no agent is judged; what is known carries its age.
Promises     ALLOC-6, ALLOC-7, OPS-4.
"""
