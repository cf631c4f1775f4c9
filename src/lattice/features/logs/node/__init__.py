"""Logs on a compute node: the agent reads files behind their writers and never blocks them.

- `collector`: from jobs on the node to grants and open files.
- `capture`: one thread for each job, from tails to spools and listeners.
- `tail`: one open file, read behind its writer.
- `spool`, `openchunk`: text on disk that is not stored yet.
- `shipper`: closed chunks to the server.
- `feed`: the answer to a server that follows a job.
"""
