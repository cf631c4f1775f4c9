"""Attach: a terminal inside a running job, as its owner, that outlives its connections.

Data path    command ─► api ─► WebSocket | gRPC ─► service.attaching ─► service.passage ─►
             port NodeStreams ─► node.passing on the agent ─► adapters.helper.terminals ─► the
             holder that the root helper made (ADR 12). Frames pass unread; every one of both
             directions goes through `Passage`, and nowhere else.
Bounds       5 sessions a caller; a message of 96 KiB, one in flight each way a hop; 2 MiB unread
             at either end; a session without its client waits 60 s. Records: 30 days, 20 000.
When down    without the agreed state nobody attaches (503: who did could not be written down) and
             open sessions go on; a server, an agent or a network that dies is a pause.
Promises     ATTACH-1 to 9, LIMIT-1.
"""
