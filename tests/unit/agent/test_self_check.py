"""What the agent reports about itself."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lattice.agent import self_check
from lattice.agent.self_check import SelfCheck


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
