"""Locks: ban a user, a node, a session or everything from Lattice, on all replicas at once.

Data path    command ─► operations ─► wiring ─► LockService ─► LockBook ─► port StateStore.
             each call ─► server.listeners.gatekeeper ─► access.locks ─► LockBook, from memory.
             An open stream or session checks again as soon as the book has changed.
Bounds       1 000 locks; a reason of 200 characters.
When down    Without the state store nothing is locked or unlocked (503), and existing locks stay. A
             replica without an answer from it for 5 s refuses every act, and still serves reads.
Promises     AUTH-13.
"""
