"""Attach on a server.

- `choosing`: whether a job can be entered, and on which of its nodes. Pure
- `records`: who attached to what, in the agreed state, before it begins and when it is over
- `passage`: the one place that every frame of both directions goes through
- `watching`: what happens to the job, the node and the caller meanwhile, in words
- `attaching`: one connection of a caller, from its first word to its last
- `tickets`: what a page shows in place of a token
- `tidying`: records whose server or client vanished are ended
"""
