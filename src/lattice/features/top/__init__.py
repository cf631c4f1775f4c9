"""Top: a job's use of its nodes, now or over a time, with the source of each figure.

Data path    caller ─► service ─ one composed query ─► metric store ─► figures ─► rows ─► render.
             If the store is down ─► the job's agents, over node streams ─► the same rows.
Scope        Every selector of a query has the owner's labels. A caller chooses a mode, an attempt
             and a number of seconds; nothing else reaches a query.
Bounds       One query to the store per answer if nothing is missing, at most five with history and
             missing nodes. At most 16 nodes are asked for reasons, which are cached for a minute.
             Requests per minute and caller are limited exactly, over all servers.
When down    The metric store: current values come from the agents, and the answer says so; there is
             no history. An agent: its node has no value, with the reason; the others have. Slurm:
             the job's state has its age. If reads can't be recorded, only the owner gets an answer.
Promises     SRC-1, SRC-2, SRC-4, TOP-1, TOP-3, TOP-4.
"""
