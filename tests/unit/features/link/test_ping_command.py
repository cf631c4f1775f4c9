"""`lattice admin ping`."""

from __future__ import annotations

import pytest

from lattice.base.errors import UsageError
from lattice.features.link.command import ping, read_count
from lattice.features.link.model import BadReplica, Replica, read_replica, written
from tests.fakes.shell import FakeShell

ANSWER = {
    "node": "n1",
    "linked_to": "lab-1",
    "measured_by": "lab-2",
    "round_trips_ms": [1.0, 3.0, 2.0],
    "opened_ms": 18.94,
}


def test_figures_and_how_they_came_about() -> None:
    shell = FakeShell({"/v1/nodes/n1/ping": ANSWER})
    assert ping(shell, node="n1", count=3) == 0
    first, second = shell.out.splitlines()
    assert first == "n1  3 round trips: median 2.0 ms, least 1.0, most 3.0"
    assert second == "    opened in 18.9 ms; measured by lab-2, linked to lab-1"


def test_a_hostile_name_is_inert() -> None:
    shell = FakeShell({"/v1/nodes/n1/ping": ANSWER | {"measured_by": "\x1b[2J"}})
    ping(shell, node="n1", count=None)
    assert "\x1b" not in shell.out


@pytest.mark.parametrize("text", ["0", "-1", "101", "x", "", "１"])
def test_a_count_that_is_none(text: str) -> None:
    with pytest.raises(UsageError):
        read_count(text)


def test_the_record_of_a_replica() -> None:
    replica = Replica(id="a", address="10.0.0.1:50052", since=1.0)
    assert read_replica(written(replica)) == replica
    assert read_replica(b'{"id":"a","address":"b","since":1,"later":2}').id == "a"
    for value in (b"", b"[]", b"\xff", b'{"id":1}', b"{" * 5000):
        with pytest.raises(BadReplica):
            read_replica(value)
