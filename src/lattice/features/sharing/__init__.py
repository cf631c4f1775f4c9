"""Sharing: an owner lets others read what a job wrote, and sees who else has read it.

Data path    command ─► api ─► http | rpc ─► service.sharing ─► service.shares ─► port StateStore
             a read of another's output ─► access.output ─► service.reads ─► port StateStore, and
             only then the answer; the owner's card and `lattice share ID` show it.
Bounds       20 000 shares in all, 500 an owner, 100 an allocation, at most 30 days each unless
             configured; 20 000 read records of at most 24 hours each, kept 30 days, the oldest go
             first. About 10 MB of state in all as a rule, 60 MB at worst.
When down    without the agreed state nothing is shared and nobody reads another's output (503);
             owners read on. An id that nobody knows is 503 too then: it might have been shared.
             An open read by a share ends within 40 s once the state is silent.
Promises     AUTH-7, AUTH-12.
"""
