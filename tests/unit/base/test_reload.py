"""Reading a configuration again: all of it or nothing, and what waits for a restart."""
# ruff: noqa: RUF009 - `setting` declares a field, as `dataclasses.field` does.

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from lattice.base.errors import ConfigurationError
from lattice.base.reload import Reload, Reloader, changed_keys, merged
from lattice.base.setting import Secret, setting
from tests.fakes.manual_clock import ManualClock


@dataclass(frozen=True, slots=True, kw_only=True)
class Doors:
    most: int = setting(5, "How many.")
    address: str = setting("here", "Where.")
    secret: Secret | None = setting(None, "Which.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    doors: Doors = setting(Doors(), "Doors.")
    rooms: tuple[str, ...] = setting((), "Rooms.")
    name: Doors = setting(Doors(), "Other.")
    warnings: tuple[str, ...] = field(default=())


TABLE = {"doors": ("most",), "rooms": ()}


class Broken:
    def __init__(self, current: Site) -> None:
        self.read: Callable[[], Site] = lambda: current
        self.applied: list[object] = []
        self.reloader = Reloader(
            current,
            TABLE,
            lambda: self.read(),  # noqa: PLW0108 - a test replaces it
            self.problems_of,
            ManualClock(),
        )
        self.reloader.add(
            Reload("doors", self.applied.append), Reload("rooms", self.applied.append)
        )

    def problems_of(self, site: Site) -> tuple[str, ...]:
        return ("too many doors here",) if site.doors.most > 7 and site.doors.address else ()


def test_keys_that_changed_have_their_section() -> None:
    after = Site(doors=Doors(most=6, secret=Secret("x")), rooms=("a",), warnings=("w",))
    assert changed_keys(Site(), after) == ("doors.most", "doors.secret", "rooms")
    assert changed_keys(after, after) == ()


def test_only_keys_of_the_table_are_merged() -> None:
    wanted = Site(doors=Doors(most=6, address="there"), rooms=("a",), name=Doors(most=1))
    assert merged(Site(), wanted, TABLE) == Site(doors=Doors(most=6), rooms=("a",))


async def test_what_can_change_is_applied_and_the_rest_is_named() -> None:
    site = Broken(Site())
    wanted = Site(doors=Doors(most=6, address="there"))
    site.read = lambda: wanted
    outcome = await site.reloader.reload()
    assert (outcome.applied, outcome.waiting) == (("doors.most",), ("doors.address",))
    assert site.applied == [Doors(most=6)]
    assert site.reloader.current == Site(doors=Doors(most=6))
    again = await site.reloader.reload()
    assert (again.applied, again.waiting) == ((), ("doors.address",))
    assert len(site.applied) == 1


async def test_a_broken_file_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    site = Broken(Site())

    def refuse() -> Site:
        raise ConfigurationError("bad", problems=("a:1: doors.most: is no number",))

    site.read = refuse
    outcome = await site.reloader.reload()
    assert outcome.problems == ("a:1: doors.most: is no number",)
    assert site.reloader.outcome is outcome
    assert site.applied == []
    assert "the old one stays in force" in caplog.text


async def test_values_that_do_not_go_with_those_that_wait_change_nothing() -> None:
    site = Broken(Site())
    site.read = lambda: replace(Site(), doors=Doors(most=9, address=""))
    outcome = await site.reloader.reload()
    assert outcome.problems[0] == "too many doors here"
    assert "doors.address" in outcome.problems[1]
    assert site.reloader.current == Site()


async def test_an_error_that_nobody_foresaw_changes_nothing() -> None:
    site = Broken(Site())
    site.read = lambda: 1 / 0  # type: ignore[assignment, return-value]
    assert "ZeroDivisionError" in (await site.reloader.reload()).problems[0]


async def test_an_applied_part_may_take_time() -> None:
    site, seen = Broken(Site()), []

    async def later(rooms: object) -> None:
        seen.append(rooms)

    site.reloader.add(Reload("rooms", later))
    site.read = lambda: Site(rooms=("a",))
    await site.reloader.reload()
    assert seen == [("a",)]


def test_a_section_that_is_not_in_the_table_is_refused() -> None:
    with pytest.raises(ValueError, match="name"):
        Broken(Site()).reloader.add(Reload("name", print))
