"""Logs: every line a job writes, live and afterwards, none lost in silence.

Data path    job ─ writes ─► its file ◄─ reads behind ─ agent ─► spool ─ chunks ─► server ─► store.
             person ─► server ─ asks ─► store, up to where it ends, then the node from there on.
Bounds       a frame is 256 KiB of text, a chunk 8 MiB stored or 5 minutes; a node's spool has a
             budget, and when it is full the agent stops reading: the job's file is the buffer.
             A job's quota ends what is kept of it on a node; stored logs live as long as their
             tenant's retention says.
When down    the agent is killed: it goes on from its spool and the file. The server or the store is
             away: chunks wait on the node. Slurm is away: what is followed is followed on.
             What is lost all the same (a file truncated before it was read, a full disk) is
             recorded as a gap and shown where it happened.
Promises     LOG-1 to LOG-7, LOG-9.
"""
