"""etcd behind the port `StateStore`: a thin asyncio client for few keys and bad conditions.

    store ─► members ─► one channel a member.     Each call has a deadline; then the next member.
    watch ─► one stream a watch.                  Resumed from the last revision seen.
    lease ─► renewed every third of its time.     Lost by the local clock, on the safe side.

Limits: those of `lattice.domain.state`. A call ends within 5 s. A silent stream is left within 5 s.

Retries: calls that only read, or may be repeated, go to the next member. A change is sent again
only if it was certainly not made: etcd refused it, or there was no connection.

Not here: locks, elections, users and roles of etcd, caching (`lattice.adapters.stateview`).

`wire/` is generated from `proto/etcd`: the few messages used, with etcd's own numbers.
"""
