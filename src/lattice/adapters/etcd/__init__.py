"""etcd behind the port `StateStore`: a thin asyncio client, made for few keys and hard times.

    store ─► members ─► one channel a member      calls: a deadline each, then the next member
    watch ─► one stream a watch                   resumed from the last revision seen
    lease ─► kept alive every third of its time   lost by the local clock, on the safe side

Bounds       `lattice.domain.state`; a call ends within 5 s, a silent stream is left within 5 s.
Retries      what only reads, or may be done twice, is asked of the next member; a change is sent
             again only where etcd, or a connection never made, says that it was not done.
Not here     locks, elections, users and roles of etcd, caching (`lattice.adapters.stateview`).

`wire/` is generated from `proto/etcd`: the few messages used, with etcd's own numbers.
"""
