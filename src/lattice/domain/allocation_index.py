"""`AllocationIndex`: the allocations of one reading by user, account, job id and node.

A cluster has tens of thousands, and from one reading to the next a few hundred change. So an index
is made from the one before it. A record that did not change is the same object in both. It costs
one comparison.

An index never changes, so a reader may keep an older one. `ChangeCursor`, `ChosenJobs` and
`AllocationTally` do: they follow the readings, so that nobody reads the whole list again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import Generic, TypeVar

from lattice.domain.allocation import Allocation
from lattice.domain.nodeset import NodeSet

_REMEMBERED = 8
"""How many differences an index has. Who missed more pays one comparison of the two lists."""

_NONE: Mapping[int, Allocation] = MappingProxyType({})

K = TypeVar("K", str, int)
T = TypeVar("T", bound=Hashable)


@dataclass(frozen=True, slots=True)
class JobChanges:
    """What two readings don't share. A record that changed is in both parts."""

    added: tuple[Allocation, ...] = ()
    gone: tuple[Allocation, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationIndex:
    """The allocations of one reading; without arguments, of none."""

    allocations: tuple[Allocation, ...] = ()
    _by_identity: Mapping[int, Allocation] = field(default_factory=dict)
    _by_user: Mapping[str, Mapping[int, Allocation]] = field(default_factory=dict)
    _by_account: Mapping[str, Mapping[int, Allocation]] = field(default_factory=dict)
    _by_job: Mapping[int, tuple[Allocation, ...]] = field(default_factory=dict)
    _by_node: Mapping[str, tuple[Allocation, ...]] = field(default_factory=dict)
    _token: object = field(default_factory=object)
    _history: tuple[tuple[object, JobChanges], ...] = ()
    """The tokens of the indexes before it, each with what changed after."""

    def next(self, allocations: Iterable[Allocation]) -> AllocationIndex:
        """The index of the next reading; this one if nothing changed."""
        read = tuple(allocations)
        if read is self.allocations:
            return self
        now = dict(zip(map(id, read), read, strict=True))
        return self._next(read, now, _compared(self._by_identity, now))

    def changed(self, change: JobChanges) -> AllocationIndex:
        """The index of the next reading, by what differs; this one if nothing does."""
        if not change.added and not change.gone:
            return self
        now = dict(self._by_identity)
        for each in change.gone:
            del now[id(each)]
        now.update((id(each), each) for each in change.added)
        return self._next(tuple(now.values()), now, change)

    def _next(
        self,
        read: tuple[Allocation, ...],
        now: Mapping[int, Allocation],
        change: JobChanges,
    ) -> AllocationIndex:
        if not change.added and not change.gone:
            return self
        return AllocationIndex(
            allocations=read,
            _by_identity=now,
            _by_user=_regrouped_many(self._by_user, change, _user),
            _by_account=_regrouped_many(self._by_account, change, _account),
            _by_job=_regrouped(self._by_job, change, _job_ids),
            _by_node=_regrouped(self._by_node, change, _nodes),
            _history=(*self._history, (self._token, change))[-_REMEMBERED:],
        )

    def since(self, earlier: AllocationIndex) -> JobChanges:
        """What changed after an earlier index."""
        if earlier is self:
            return JobChanges()
        tokens = [token for token, _ in self._history]
        if earlier._token not in tokens:
            return _compared(earlier._by_identity, self._by_identity)
        added: dict[int, Allocation] = {}
        gone: dict[int, Allocation] = {}
        for _, change in self._history[tokens.index(earlier._token) :]:
            for each in change.gone:
                if added.pop(id(each), None) is None:
                    gone[id(each)] = each
            added.update((id(each), each) for each in change.added)
        return JobChanges(tuple(added.values()), tuple(gone.values()))

    def of_user(self, user: str) -> tuple[Allocation, ...]:
        """Those of one user."""
        return tuple(self._by_user.get(user, _NONE).values())

    def of_account(self, account: str) -> tuple[Allocation, ...]:
        """Those of one account."""
        return tuple(self._by_account.get(account, _NONE).values())

    def of_job(self, job_id: int) -> tuple[Allocation, ...]:
        """Those with this job id, as a job of its own, as an array or as a het job."""
        return self._by_job.get(job_id, ())

    def on_node(self, node: str) -> tuple[Allocation, ...]:
        """Those with an attempt that runs or ran on this node."""
        return self._by_node.get(node, ())


class ChangeCursor:
    """How far one reader of the readings has come: it gets each change once."""

    def __init__(self) -> None:
        self._read = AllocationIndex()

    def changes(self, index: AllocationIndex) -> JobChanges:
        """What changed since the last call; at first everything."""
        earlier, self._read = self._read, index
        return index.since(earlier)


class ChosenJobs:
    """The allocations of the newest reading that a condition holds for."""

    def __init__(self, holds: Callable[[Allocation], bool]) -> None:
        """`holds` always returns the same for one record."""
        self._holds = holds
        self._cursor = ChangeCursor()
        self._jobs: dict[int, Allocation] = {}

    def of(self, index: AllocationIndex) -> Collection[Allocation]:
        """A later call changes this collection."""
        change = self._cursor.changes(index)
        for each in change.gone:
            self._jobs.pop(id(each), None)
        self._jobs.update((id(each), each) for each in change.added if self._holds(each))
        return self._jobs.values()


class AllocationTally(Generic[T]):
    """How many allocations of the newest reading have each key."""

    def __init__(self, keys_of: Callable[[Allocation], Iterable[T]]) -> None:
        """`keys_of` always returns the same keys for one record."""
        self._keys_of = keys_of
        self._cursor = ChangeCursor()
        self._counts: dict[T, int] = {}

    def of(self, index: AllocationIndex) -> Mapping[T, int]:
        """The counts, without zeros. A later call changes this mapping."""
        change = self._cursor.changes(index)
        for records, step in ((change.added, 1), (change.gone, -1)):
            for each in records:
                for key in self._keys_of(each):
                    count = self._counts.get(key, 0) + step
                    if count:
                        self._counts[key] = count
                    else:
                        del self._counts[key]
        return MappingProxyType(self._counts)


def _compared(before: Mapping[int, Allocation], now: Mapping[int, Allocation]) -> JobChanges:
    """In the order of the readings."""
    added, gone = now.keys() - before.keys(), before.keys() - now.keys()
    return JobChanges(
        added=tuple(now[key] for key in filter(added.__contains__, now)) if added else (),
        gone=tuple(before[key] for key in filter(gone.__contains__, before)) if gone else (),
    )


def _regrouped(
    groups: Mapping[K, tuple[Allocation, ...]],
    change: JobChanges,
    keys_of: Callable[[Allocation], Iterable[K]],
) -> Mapping[K, tuple[Allocation, ...]]:
    gone: dict[K, set[int]] = {}
    added: dict[K, list[Allocation]] = {}
    for each in change.gone:
        for key in keys_of(each):
            gone.setdefault(key, set()).add(id(each))
    for each in change.added:
        for key in keys_of(each):
            added.setdefault(key, []).append(each)
    again = dict(groups)
    for key in gone.keys() | added.keys():
        less = gone.get(key, set())
        group = [each for each in again.get(key, ()) if id(each) not in less]
        group += added.get(key, [])
        if group:
            again[key] = tuple(group)
        else:
            again.pop(key, None)
    return again


def _regrouped_many(
    groups: Mapping[str, Mapping[int, Allocation]],
    change: JobChanges,
    key_of: Callable[[Allocation], str],
) -> Mapping[str, Mapping[int, Allocation]]:
    """The same for groups of hundreds: a copy of a dictionary costs least. By identity."""
    copied: dict[str, dict[int, Allocation]] = {}

    def copy_of(key: str) -> dict[int, Allocation]:
        if key not in copied:
            copied[key] = dict(groups.get(key, _NONE))
        return copied[key]

    for each in change.gone:
        copy_of(key_of(each)).pop(id(each), None)
    for each in change.added:
        copy_of(key_of(each))[id(each)] = each
    copied.pop("", None)
    again = {**groups, **copied}
    for key in [key for key, group in copied.items() if not group]:
        del again[key]
    return again


def _user(allocation: Allocation) -> str:
    return allocation.user


def _account(allocation: Allocation) -> str:
    return allocation.account


def _job_ids(allocation: Allocation) -> Iterable[int]:
    ids = {allocation.job_id}
    if allocation.array is not None:
        ids.add(allocation.array.job_id)
    if allocation.heterogeneous is not None:
        ids.add(allocation.heterogeneous.job_id)
    return ids


def _nodes(allocation: Allocation) -> Iterable[str]:
    lists = {allocation.nodes, *(each.nodes for each in allocation.attempts)} - {""}
    if len(lists) == 1:
        (nodes,) = lists
        return _names(nodes) if _is_list(nodes) else (nodes,)
    return {name for each in lists for name in _names(each)}


def _is_list(nodes: str) -> bool:
    return "[" in nodes or "," in nodes


@lru_cache(maxsize=64)
def _names(nodes: str) -> tuple[str, ...]:
    """Cached: the tasks of an array often share their nodes."""
    try:
        return tuple(NodeSet.parse(nodes))
    except ValueError:
        return ()
