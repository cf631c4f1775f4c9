"""Attach on a server.

- `node_choice`: whether a job can be entered, and on which node. Pure.
- `records`: the record of each session in the state store, from before its begin to its end.
  It ends the records of lost servers and clients too.
- `registry`: the slot and the record of a session.
- `questions`: the signed requests to a node.
- `tap`: the one place that every frame of both directions goes through.
- `watcher`: changes of the job, the node and the caller, as messages.
- `session`: one connection of a caller, from its first message to its last.
- `tickets`: single-use secrets for browsers, in place of a token.
"""
