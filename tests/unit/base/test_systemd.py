"""What systemd hears of a daemon, and which of its sockets the daemon takes."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from lattice.base import systemd as module
from lattice.base.systemd import Systemd


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        listener.settimeout(5)
        yield listener


def _environment(manager: socket.socket, **more: str) -> dict[str, str]:
    return {"NOTIFY_SOCKET": manager.getsockname(), **more}


def test_without_systemd_nothing_happens(tmp_path: Path) -> None:
    for environment in ({}, {"NOTIFY_SOCKET": str(tmp_path / "nobody")}):
        own = Systemd(environment)
        own.ready("serves")
        own.alive()
        own.stopping()
        assert own.inherited(tmp_path / "socket", socket.SOCK_STREAM) is None


def test_ready_status_and_end(manager: socket.socket) -> None:
    own = Systemd(_environment(manager))
    own.ready("serves REST")
    own.status("busy")
    own.stopping()
    assert [manager.recv(100) for _ in range(3)] == [
        b"READY=1\nSTATUS=serves REST",
        b"STATUS=busy",
        b"STOPPING=1",
    ]


async def test_a_watched_daemon_reports_from_its_loop(manager: socket.socket) -> None:
    own = Systemd(_environment(manager, WATCHDOG_USEC="60000"))
    assert own.watchdog_s == 0.06
    alive = asyncio.create_task(own.keep_alive())
    first = await asyncio.to_thread(manager.recv, 100)
    second = await asyncio.to_thread(manager.recv, 100)
    alive.cancel()
    assert (first, second) == (b"WATCHDOG=1", b"WATCHDOG=1")


def test_the_watchdog_and_sockets_of_another_process_are_not_ours(manager: socket.socket) -> None:
    other = str(os.getpid() + 1)
    own = Systemd(
        _environment(
            manager, WATCHDOG_USEC="1", WATCHDOG_PID=other, LISTEN_PID=other, LISTEN_FDS="1"
        )
    )
    assert own.watchdog_s == 0.0
    assert own.inherited(Path("/x"), socket.SOCK_SEQPACKET) is None


def test_the_socket_at_the_own_path_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    path = tmp_path / "helper.sock"
    given.bind(str(path))
    descriptor = given.detach()
    monkeypatch.setattr(module, "_FIRST_DESCRIPTOR", descriptor)
    environment = {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1"}
    assert Systemd(environment).inherited(tmp_path / "other", socket.SOCK_SEQPACKET) is None
    assert Systemd(environment).inherited(path, socket.SOCK_STREAM) is None
    found = Systemd(environment).inherited(path, socket.SOCK_SEQPACKET)
    assert found is not None
    with found:
        assert (found.fileno(), found.get_inheritable()) == (descriptor, False)
