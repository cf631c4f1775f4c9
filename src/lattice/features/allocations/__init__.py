"""Allocations: the caller's jobs, running, pending and finished, and nobody else's.

Data path    slurmctld ─ poll ─► live reading ┐
             slurmdbd  ─ ask ──► past         ┴► service (scope cuts both) ─► http | rpc
             ─► api ─► command ─► render
             nodes ─ asked ──► last output, of one that runs and is shown in full
Bounds       a list holds at most 1 000 allocations and says so when there are more; the past is
             asked per caller, never as a whole; nodes are waited for a second, 64 at once.
When down    slurmctld: the last reading is served with its age, and an id that is not in it is
             503, whosever it is. slurmdbd: live ones go on, the list says that the past is
             missing, history is 503. A node: the card says which did not answer.
Promises     ALLOC-1, ALLOC-2, ALLOC-6, ALLOC-7, AUTH-7, AUTH-12.
"""
