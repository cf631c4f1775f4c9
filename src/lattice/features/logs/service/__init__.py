"""Logs on a server.

- `naming`: from what a node says of a job to the allocation and attempt that Slurm knows, and keys
- `intake`: grants for a node's helper, and chunks from nodes to the store
- `archive`: what the store has of an attempt, and the text of a range;  `indexes`: of its chunks
- `feeds`: one open stream a node and allocation, shared by all who look
- `lines`, `view`: pieces to lines, streams merged in the order of time
- `look`: one question under way;  `reading`: who may ask it
"""
