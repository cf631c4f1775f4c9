"""Nodes: what the cluster is made of, and the state of each part.

Data path    slurmctld ─ poll ─► live reading ─► service ─► http | rpc ─► api ─► command ─► render
Bounds       one reading serves all callers; a node names the caller's own allocations, no others.
When down    the last reading is served with its age; a node it does not hold is 503 meanwhile.
Promises     ALLOC-6, ALLOC-7.
"""
