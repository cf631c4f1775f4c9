"""Writes records into an empty state; repeatable after an interruption.

The cluster's record comes last, and without it no server starts. So a state that was written in
part is never served, and the same call completes it. A state that holds anything else is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lattice.base.errors import ConfigurationError
from lattice.domain.backup import StateRecord
from lattice.domain.cluster_record import CLUSTER_KEY, ClusterRecord, read_cluster
from lattice.domain.state import LARGEST_COMMIT_BYTES, MOST_CHANGES, Expect, Put, StateStore


async def import_state(
    store: StateStore, records: Sequence[StateRecord], cluster: ClusterRecord
) -> int:
    """Write the records, then the cluster's. Returns how many were written by this call.

    Raises `ConfigurationError` if the state holds something else, and `Unavailable`.
    """
    listing = await store.list("")
    there = {each.key: each for each in listing.entries}
    wanted = {each.key: each.value for each in records if each.key != CLUSTER_KEY}
    if CLUSTER_KEY in there:
        found = read_cluster(there[CLUSTER_KEY])
        raise ConfigurationError(
            f"The state holds a cluster already: {found.id}, since {found.created:%Y-%m-%d}.",
            hint="Nothing was changed. Name an etcd that is empty.",
        )
    running = [each.key for each in listing.entries if each.lease]
    if running:
        raise ConfigurationError(
            f"A server uses this state now: {running[0][:60]} is under a lease.",
            hint="Nothing was changed. Stop every lattice-server, wait a minute, then try again.",
        )
    foreign = [key for key, each in there.items() if wanted.get(key) != each.value]
    if foreign:
        raise ConfigurationError(
            f"The state is not empty: it has {foreign[0][:60]}.",
            hint="Nothing was changed. Name an etcd that has no keys below /lattice/.",
        )
    missing = [StateRecord(key, wanted[key]) for key in sorted(wanted) if key not in there]
    for batch in _batches(missing):
        expect = [Expect(each.key, 0) for each in batch]
        if await store.commit(expect, [Put(each.key, each.value) for each in batch]) is None:
            raise ConfigurationError(
                "Another process writes to this state at the same time.",
                hint="Stop every lattice-server, then try again.",
            )
    await _check_written(store, wanted)
    last = [Put(CLUSTER_KEY, cluster.encoded())]
    if await store.commit([Expect(CLUSTER_KEY, 0)], last) is None:
        raise ConfigurationError(
            "Another process began a cluster in this state at the same time.",
            hint="Find out which; nothing of it was changed.",
        )
    return len(missing) + 1


async def _check_written(store: StateStore, wanted: dict[str, bytes]) -> None:
    there = {each.key: each.value for each in (await store.list("")).entries}
    if there != wanted:
        raise ConfigurationError(
            "The state does not hold what was written to it.",
            hint="Find out who else writes to it, then empty it and try again.",
        )


def _batches(records: Sequence[StateRecord]) -> Iterator[Sequence[StateRecord]]:
    begin, size_bytes = 0, 0
    for index, each in enumerate(records):
        each_bytes = len(each.key) + len(each.value)
        too_large = size_bytes + each_bytes > LARGEST_COMMIT_BYTES
        if index > begin and (index - begin == MOST_CHANGES or too_large):
            yield records[begin:index]
            begin, size_bytes = index, 0
        size_bytes += each_bytes
    if begin < len(records):
        yield records[begin:]
