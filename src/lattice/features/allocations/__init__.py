"""Allocations: the caller's jobs that are running, pending or finished.

Data path    slurmctld ─ poll ─► live snapshot ┐
             slurmdbd  ─ query ► past jobs     ┴► service; the scope filters both.
             service ─► operations ─► command ─► render.
             nodes ─ query ──► last output of a running allocation, in its full view.
Bounds       A list holds at most 1 000 allocations and reports when there are more. slurmdbd is
             queried per caller, never as a whole. Queries to nodes wait one second, 64 at once.
When down    slurmctld: the last snapshot is served with its age. An id that is not in it returns
             503, no matter who owns it. slurmdbd: the list shows live allocations and reports that
             finished ones are missing; history returns 503. A node: the card names the nodes that
             did not answer.
Promises     ALLOC-1, ALLOC-2, ALLOC-6, ALLOC-7, AUTH-7, AUTH-12.
"""
