"""Diag: faults of a job with evidence and remedy, and the stacks of its ranks.

Data path    caller ─► service ─┬─ snapshots, alerts and signs of progress of each node.
                                ├─ facts: links, mounts, tasks, GPUs, clock of each node.
                                └─ one query to the metric store: the last ten minutes.
             All in parallel ─► one case ─► rules (one file each, pure) ─► findings ─► render.
             --stacks: only the owner ─► nodes ─► helper, in the job ─► merged over all ranks.
Bounds       One deadline for all requests: 3 s for a page, up to 10 s above 50 nodes, and 15 s for
             stacks. One query to the store. Diagnoses per minute and caller are limited exactly,
             over all servers. Earlier facts are kept for 15 minutes, at most 2 000 of them.
When down    A node, its agent or the metric store: findings that need it are unknown, with the
             reason; the rest is judged. Unknown never becomes ok.
Promises     DIAG-1 to DIAG-6, LIMIT-1, SRC-1, SRC-2, CLI-2.
"""
