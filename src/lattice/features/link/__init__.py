"""Link: every node within reach of every replica, with nothing listening on a node.

Data path    agent ─ dials ─► replica B: one quiet link, pings up, tickets down.
             person ─► replica A ─ ticket ─► (B ─►) agent ─ dials ─► A: a stream, one hop.
             A stream is a pipe between its two ends; the replica between them passes frames on
             unread and keeps nothing, so its death is a pause and no loss.
Bounds       a ping every 5 s; 15 s of silence end a link; 64 messages wait on a link at most; a
             pipe holds 2 MiB at each end; a session waits 60 s for its caller to come back.
When down    a replica dies: its agents dial another within seconds, its lease takes its routes.
             The state store is away: links stand, and what is linked here can be reached here; a
             link that others can't find looks for a replica that can publish it.
             No way to a node: said in words with since when; never a hang.
Promises     AUTH-8, AUTH-9, and the table of times.
"""
