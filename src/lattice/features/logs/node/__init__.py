"""Logs on a compute node: behind the writer, never in its way.

- `collecting`: jobs that come and go → grants → open files
- `capture`: one thread a job, tails → spools, and to whoever follows
- `tail`: one open file, read behind its writer
- `spool`, `openchunk`: what was read and is not yet stored, on disk
- `shipping`: closed chunks → the server
- `feed`: the answer to a server that follows
"""
