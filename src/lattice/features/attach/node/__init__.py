"""Attach on a node.

- `terminals`: connects a session to its holder, by the server's request.
- `recorder`: the recording of one terminal, from its events to durable chunks.
- `recorded`: a terminal that shows nothing before it is recorded, over all its connections.
- `chunk_files`: the chunks on the node's disk, until the object store has them.
- `leftovers`: gives a server the chunks of a recorder that is gone.
"""
