"""What the agent reports about itself."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lattice.agent import self_check
from lattice.agent.self_check import OwnSources, SelfCheck
from lattice.base.errors import Unavailable
from lattice.domain.node import AgentFacts


@pytest.mark.spec("TRY-2")
async def test_a_missing_helper_is_named_with_what_to_do(tmp_path: Path) -> None:
    there = tmp_path / "helper.sock"
    check = SelfCheck(there, tmp_path)
    await check.check()
    [lack] = check.current()
    assert lack == (
        f"lattice-helper: {there}: No such file or directory. No terminals in jobs, no output "
        "files that only their owner may read. On the node: systemctl restart lattice-helper"
    )
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as helper:
        helper.bind(str(there))
        await check.check()
        assert "Connection refused" in check.current()[0]
        helper.listen()
        await check.check()
        assert check.current() == ()


def _disk(**values: int) -> Any:
    usual = {"f_bavail": 10**6, "f_frsize": 4096, "f_flag": 0, "f_files": 100, "f_favail": 50}
    return SimpleNamespace(**usual | values)


@pytest.mark.parametrize(
    ("disk", "words"),
    [
        (_disk(), ""),
        (_disk(f_bavail=10), "40 KiB are free"),
        (_disk(f_favail=0), "no inode is free"),
        (_disk(f_files=0, f_favail=0), ""),
        (_disk(f_flag=os.ST_RDONLY), "read-only"),
    ],
)
async def test_a_full_disk_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, disk: Any, words: str
) -> None:
    monkeypatch.setattr(self_check.os, "statvfs", lambda _: disk)
    check = SelfCheck(tmp_path / "helper.sock", tmp_path)
    await check.check()
    told = [each for each in check.current() if str(tmp_path / "helper.sock") not in each]
    assert bool(told) is bool(words)
    assert words in "".join(told)


async def test_a_state_folder_that_is_gone_is_named(tmp_path: Path) -> None:
    check = SelfCheck(tmp_path / "helper.sock", tmp_path / "gone")
    await check.check()
    assert f"state folder {tmp_path / 'gone'}: No such file or directory" in check.current()


async def test_sizes_and_clock_are_reported_again_when_they_have_changed_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(self_check.os, "statvfs", lambda _: _disk())
    now: dict[str, Any] = {"spool": None, "ahead": None}
    sources = OwnSources(
        spool_bytes=lambda: now["spool"], spool_most_bytes=2**30, ahead_s=lambda: now["ahead"]
    )
    check = SelfCheck(tmp_path / "helper.sock", tmp_path, sources)
    assert check.facts() == AgentFacts(), "nothing is known before the first check"

    async def measured(spool: int | None, ahead: float | None) -> tuple[int | None, float | None]:
        now.update(spool=spool, ahead=ahead)
        await check.check()
        return check.facts().spool_bytes, check.facts().clock_ahead_s

    mib = 2**20
    assert await measured(None, None) == (None, None)
    assert await measured(10 * mib, 0.1) == (10 * mib, 0.1)
    assert await measured(19 * mib, 0.5) == (10 * mib, 0.1), "less than twice, less than 0.5 s"
    assert await measured(21 * mib, -0.5) == (21 * mib, -0.5)
    assert await measured(0, -0.5) == (0, -0.5)
    assert await measured(mib - 1, -0.5) == (0, -0.5), "steps below a MiB are not worth a write"
    assert await measured(None, None) == (None, None), "what is not known any more is not shown"
    assert check.facts().free_bytes == 4096 * 10**6


async def test_the_state_of_ebpf_is_unknown_while_the_helper_is_away(tmp_path: Path) -> None:
    asked: list[int] = []
    found: list[str | Unavailable] = ["the kernel has no BTF", Unavailable("busy"), "ok"]

    async def latency() -> str:
        asked.append(1)
        state = found.pop(0)
        if isinstance(state, Unavailable):
            raise state
        return state

    path = tmp_path / "helper.sock"
    check = SelfCheck(path, tmp_path, OwnSources(latency=latency))
    await check.check()
    assert (check.facts().latency, asked) == ("", [])
    assert check.facts().helper == "No such file or directory"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as helper:
        helper.bind(str(path))
        helper.listen()
        await check.check()
        assert (check.facts().helper, check.facts().latency) == ("ok", "the kernel has no BTF")
        await check.check()
        assert len(asked) == 1, "asked now and then, as it rarely changes"
    path.unlink()
    await check.check()
    assert check.facts().latency == ""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as helper:
        helper.bind(str(path))
        helper.listen()
        await check.check()
        assert check.facts().latency == ""
        await check.check()
        assert check.facts().latency == "ok"
