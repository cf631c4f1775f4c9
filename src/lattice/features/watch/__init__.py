"""Watch: a live stream of a job's measurements and alerts from its nodes.

Data path    agent ─ snapshot ─► judge (nine rules) ─ alerts, rows of numbers ─► server.
             With alerts only, the agent sends no measurements.
             server ─ merges nodes and Slurm's state ─► caller: SSE, gRPC, `lattice watch`.
Bounds       Five streams per caller. Measurements of many nodes in one interval are one message. A
             slow reader gets only the newest snapshot of each node, and every alert up to 20 000
             waiting events.
When down    The metric store is not used. A node that stops answering is reported lost once, and
             its alerts become unknown, never fine. Slurm: states pause, and no end is reported. A
             server dies: the client reconnects elsewhere with a cursor and gets no alert twice.
Promises     WATCH-1, WATCH-2, the stream of metrics of LIMIT-1.
"""
