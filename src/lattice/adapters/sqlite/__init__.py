"""SQLite behind the port `StateStore`, for one server and nothing else (`lattice-server --single`).

    store ─► one worker thread ─► database ─► state.db      WAL, synchronous=FULL: kept on return
    watch ─► the history in the file, woken inside the process

Bounds       `lattice.domain.state`; the last 10 000 revisions can be watched, older are compacted.
One process  a lock file refuses the second, in words. So a lease lasts as long as the process, and
             whatever leases a start finds belong to a process that is no more: they end at once.
Not here     several servers: that is what etcd is for.
"""
