"""Locks: shut a user, a node, a terminal or everything out of Lattice, on every replica at once.

Data path    command ─► api ─► http | rpc ─► service.locking ─► service.book ─► port StateStore
             every call ─► server.gatekeeper ─► access.locks ─► service.book, from memory; an open
             stream or terminal asks again as soon as the book has changed.
Bounds       1 000 locks; a reason of 200 letters.
When down    without the agreed state nothing is locked or unlocked (503); what was locked stays
             so. A replica that has not heard from it for 5 s refuses every act, and still reads.
Promises     AUTH-13.
"""
