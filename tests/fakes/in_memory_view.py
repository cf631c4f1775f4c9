"""A view of agreed state that is always current: for tests that ask no view to be late."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager

from lattice.domain.source import Source
from lattice.domain.state import Changed, ChangeReader, Entry
from tests.fakes.in_memory_state import InMemoryStateStore


class InMemoryStateView:
    """One prefix of a store in memory."""

    def __init__(self, store: InMemoryStateStore, prefix: str) -> None:
        self._store = store
        self._prefix = prefix

    @property
    def entries(self) -> Mapping[str, Entry]:
        found = self._store.space.entries
        return {key: entry for key, entry in found.items() if key.startswith(self._prefix)}

    def get(self, key: str) -> Entry | None:
        return self.entries.get(key)

    @property
    def source(self) -> Source:
        return Source(name="state", ok=True, as_of=self._store.clock.now(), age_s=0.0)

    async def wait_first(self) -> None:
        return

    async def refresh(self) -> None:
        return

    def reader(self) -> ChangeReader:
        return _Differences(self)

    def changes(self) -> AbstractAsyncContextManager[AsyncIterator[tuple[Changed, ...]]]:
        raise NotImplementedError


class _Differences:
    """Compares the entries with those of the last call."""

    def __init__(self, view: InMemoryStateView) -> None:
        self._view = view
        self._seen: Mapping[str, Entry] = {}

    def take(self) -> tuple[Changed, ...]:
        before, self._seen = self._seen, self._view.entries
        gone = [Changed(key, None, 0) for key in before.keys() - self._seen.keys()]
        came = [entry for key, entry in self._seen.items() if before.get(key) != entry]
        return (*gone, *(Changed(each.key, each, each.revision) for each in came))
