"""Logs: every line a job writes, live and later; every loss is shown as a gap.

Data path    job ─ writes ─► its file ◄─ reads ─ agent ─► spool ─ chunks ─► server ─► object store.
             A query reads the object store up to its end, then the node from there on.
Bounds       A frame has 256 KiB of text. A chunk has 8 MiB stored or 5 minutes. A node's spool has
             a limit; when it is full the agent stops reading, and the job's file is the buffer.
             Of sensitive jobs everything in spool and store is sealed, and in a bucket of its own.
             A quota limits what a node keeps of a job. Stored logs are kept as long as their
             tenant's retention requires.
When down    A killed agent continues from its spool and the file. While the server or the store is
             away, chunks wait on the node. Without Slurm the agent continues to follow its jobs.
             Without its key nothing of a sensitive job is read; its file is the buffer then, too.
             A gap records and shows what is lost anyway (a file truncated before it was read, a
             full disk).
Promises     LOG-1 to LOG-9.
"""
