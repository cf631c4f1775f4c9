"""Top: what a job uses of its nodes, now or over a time, with where each figure comes from.

Data path    person ─► service ─ one composed query ─► metric store ─► figures ─► rows ─► faces
             the store is silent ─► the job's agents, through the servers' looks ─► the same rows
Scope        every selector of a query is made with the owner's labels in it; a caller chooses a
             mode, an attempt and a number of seconds, and nothing else reaches a query.
Bounds       one question to the store a look, two with a history; reasons for what is missing are
             asked of at most 16 nodes, and remembered for a minute. A caller has a number of
             looks a minute, exact over all servers.
When down    the metric store: values of now from the agents, and the answer says so; what needs
             the past has none. An agent: its node has no value and the reason; the others go on.
             Slurm: the job's state is told with its age. Reads by others can't be written down:
             they are not answered; an owner's are.
Promises     SRC-1, SRC-2, SRC-4, TOP-1, TOP-3, TOP-4.
"""
