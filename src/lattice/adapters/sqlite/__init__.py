"""SQLite behind the port `StateStore`, only for a single server (`lattice-server --single`).

    store ─► one worker thread ─► database ─► state.db.
    watch ─► the history in the file, with wake-ups inside the process.

With WAL and synchronous=FULL a write is on disk when the call returns.

Limits: those of `lattice.domain.state`. The last 10 000 revisions can be watched; older ones are
compacted.

One process: a lock file refuses a second one with a clear error. So a lease lasts as long as the
process. Leases that exist at a start belong to a dead process, and end at once.

Not here: several servers, which need etcd.
"""
