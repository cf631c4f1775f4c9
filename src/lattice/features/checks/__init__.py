"""Active checks of nodes: all-reduce, disk and links, measured by a job on the nodes.

Data path    command ─► operations ─► CheckService ─► gate ─► sbatch, as the caller. The job waits
             for its nodes and prints a line for each ─► logs ─► CheckService ─► etcd.
Bounds       A check has 256 nodes at most and all of each, so it disturbs no other job. It has ten
             minutes. The newest 8 results of a node are kept.
When down    Without the gate nothing is checked. Without etcd a check is not submitted, since its
             result would have no place. While logs or Slurm are away, results come later. If a
             server dies while it submits a check, the job is found by the mark in its comment.
Promises     OPS-10.
"""
