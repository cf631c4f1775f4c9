"""Attach: a terminal inside a running job, as its owner, that survives lost connections.

Data path    command ─► terminal_call ─► WebSocket | gRPC ─► service.session ─► service.tap ─►
             port NodeStreams. On the node: node ─► adapters.helper.terminals ─►
             the holder that the root helper started (ADR 12). The server doesn't parse frames.
             All frames of both directions go through `SessionTap`.
Bounds       5 sessions for each caller. A message has at most 96 KiB, with one in flight for each
             direction and hop. Each end buffers 2 MiB. A session without a client waits 60 s.
             Records are kept for 30 days by default, at most 20 000.
When down    Without the state store nobody can attach (503), because no record can be written. Open
             sessions continue. After the loss of a server, an agent or a network they reconnect.
Promises     ATTACH-1 to 9, LIMIT-1.
"""
