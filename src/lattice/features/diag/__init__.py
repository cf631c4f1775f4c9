"""Diag: what is sick about a job, how we know, and what to do; and where each of its ranks stands.

Data path    person ─► service ─┬─ looks: what each node measured, its alerts, signs of progress
                                ├─ facts: links, mounts, tasks, cards, clock of each node
                                └─ one question to the metric store: the last ten minutes
             all at once ─► one case ─► rules (one file each, pure) ─► findings ─► faces
             --stacks: the owner alone ─► nodes ─► helper, in the job ─► merged over all ranks
Bounds       one deadline for everything that is asked, 3 s for a page and 20 s for stacks; one
             question to the store; a caller has a number of diagnoses a minute, exact over all
             servers. Facts of the look before are kept for a quarter of an hour, of 2 000 nodes.
When down    a node, its agent or the metric store: what rests on it is unknown, with the reason;
             the rest is judged. Unknown never becomes ok.
Promises     DIAG-1 to DIAG-6, LIMIT-1, SRC-1, SRC-2, CLI-2.
"""
