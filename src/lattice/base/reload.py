"""Reads a configuration again while the process runs, on SIGHUP.

The file is checked wholly first: with a problem nothing changes. Of what changed, the keys that can
change are put into force at once, and the others are named. They need a restart. What is then in
force is checked too: old and new values must go together.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from datetime import datetime
from typing import Any, Generic, TypeAlias, TypeVar

from lattice.base.clock import Clock
from lattice.base.errors import ConfigurationError
from lattice.base.setting import setting_of

C = TypeVar("C")

ReloadTable: TypeAlias = Mapping[str, Collection[str]]
"""The keys of each section that can change while the process runs; none: the whole section."""

_log = logging.getLogger("lattice.reload")


@dataclass(frozen=True, slots=True)
class Reload:
    """Puts a changed section into force. `apply` gets the section, and must not fail."""

    section: str
    apply: Callable[[Any], Awaitable[None] | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReloadOutcome:
    """What the last reload did. With `problems` it changed nothing."""

    at: datetime
    problems: tuple[str, ...] = ()
    applied: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    """Keys that differ from the file until a restart."""


def changed_keys(before: object, after: object) -> tuple[str, ...]:
    """The keys of which the values differ, as `section.key`."""
    found: list[str] = []
    for name, old, new in _settings(before, after):
        if old == new:
            continue
        if is_dataclass(old) and is_dataclass(new):
            found += (f"{name}.{key}" for key, one, two in _settings(old, new) if one != two)
        else:
            found.append(name)
    return tuple(found)


def _settings(before: object, after: object) -> Iterable[tuple[str, object, object]]:
    for each in fields(before):  # type: ignore[arg-type]
        if setting_of(each) is not None:
            yield each.name, getattr(before, each.name), getattr(after, each.name)


def merged(before: C, after: C, table: ReloadTable) -> C:
    """The configuration before, with the keys of the table as they are after."""
    sections = {}
    for section, keys in table.items():
        old, new = getattr(before, section), getattr(after, section)
        sections[section] = (
            replace(old, **{key: getattr(new, key) for key in keys}) if keys else new
        )
    return replace(before, **sections)  # type: ignore[type-var]


class Reloader(Generic[C]):
    """The configuration in force, and how it is changed."""

    def __init__(
        self,
        current: C,
        table: ReloadTable,
        read: Callable[[], C],
        problems_of: Callable[[C], tuple[str, ...]],
        clock: Clock,
    ) -> None:
        """`read` reads the file and raises `ConfigurationError` with every problem in it."""
        self.current = current
        self.outcome: ReloadOutcome | None = None
        """Of the last reload; None before the first."""
        self._table = table
        self._read = read
        self._problems_of = problems_of
        self._clock = clock
        self._parts: list[Reload] = []
        self._count = 0
        self._reading = asyncio.Lock()

    def add(self, *parts: Reload) -> None:
        """Call these when their section has changed, in this order."""
        for each in parts:
            if each.section not in self._table:
                raise ValueError(f"the section {each.section} can't be reloaded")
        self._parts += parts

    async def reload(self) -> ReloadOutcome:
        """Read the file and put into force what can change. Never raises."""
        async with self._reading:
            self.outcome = outcome = await self._reload()
            self._count += 1
        # With the number, so that no line counts as a repetition, which the log leaves out.
        number = self._count
        if outcome.problems:
            _log.error(
                "configuration not reloaded, the old one stays in force",
                extra={"problems": list(outcome.problems), "reload": number},
            )
            return outcome
        _log.info(
            "configuration reloaded", extra={"changed": list(outcome.applied), "reload": number}
        )
        if outcome.waiting:
            _log.warning(
                "changed but needs a restart: %s",
                ", ".join(outcome.waiting),
                extra={"keys": list(outcome.waiting), "reload": number},
            )
        return outcome

    async def _reload(self) -> ReloadOutcome:
        now = self._clock.now()
        try:
            wanted = await asyncio.to_thread(self._read)
            after = merged(self.current, wanted, self._table)
            problems = await asyncio.to_thread(self._problems_of, after)
        except ConfigurationError as error:
            return ReloadOutcome(at=now, problems=error.problems or (error.message,))
        except Exception as error:  # noqa: BLE001 - a file must not end the process
            _log.exception("the configuration can't be read")
            return ReloadOutcome(at=now, problems=(f"{type(error).__name__}: {error}",))
        waiting = changed_keys(after, wanted)
        if problems:
            text = f"these need a restart, and the rest needs them: {', '.join(waiting)}"
            return ReloadOutcome(at=now, problems=(*problems, text))
        applied = changed_keys(self.current, after)
        sections = {each.partition(".")[0] for each in applied}
        self.current = after
        for part in self._parts:
            if part.section in sections:
                applying = part.apply(getattr(after, part.section))
                if applying is not None:
                    await applying
        return ReloadOutcome(at=now, applied=applied, waiting=waiting)
