"""Watch: a job's nodes tell what they measure and what is wrong, as it happens.

Data path    agent ─ snapshot ─► judge (nine rules) ─ alerts, sights ─► server ─ merges all nodes,
             adds the job's own state from Slurm ─► person: SSE, gRPC, `lattice watch`.
Bounds       five streams a caller; what many nodes measured in one interval is one message; a slow
             reader is told the newest of each node, never an older one, and every alert.
When down    the metric store is not on the way. A node that stops answering is told as lost, once,
             and what stood there is unknown, never fine. Slurm is away: states pause, and no end
             is invented. A server dies: the client goes on elsewhere with a cursor of what it
             knows, and is told of no alert twice.
Promises     WATCH-1, WATCH-2, the stream of metrics of LIMIT-1.
"""
