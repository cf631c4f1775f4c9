"""The kernel is told beforehand only where this process's own group is really known."""

from __future__ import annotations

import os
from pathlib import Path

from lattice.helper.job_entry import Foresight
from tests.eventually import eventually


def tree(folder: Path, lines: str, group: str, pid: int) -> Path:
    (folder / "proc/self").mkdir(parents=True)
    (folder / "proc/self/cgroup").write_text(lines)
    (folder / "cgroup" / group).mkdir(parents=True)
    file = folder / "cgroup" / group / "cgroup.procs"
    file.write_text(f"1\n{pid}\n")
    return file


def wait_until_moved(folder: Path, file: Path) -> None:
    before = file.read_text()
    Foresight(folder / "proc", folder / "cgroup").begin()
    eventually(file.read_text, lambda text: text != before)


def test_it_is_moved_to_where_it_is(tmp_path: Path) -> None:
    lines = "9:name=systemd:/x\n6:freezer:/a/b\n0::/\n"
    wait_until_moved(tmp_path / "v1", tree(tmp_path / "v1", lines, "freezer/a/b", os.getpid()))
    lines = "0::/system.slice/helper.service\n"
    file = tree(tmp_path / "v2", lines, "system.slice/helper.service", os.getpid())
    wait_until_moved(tmp_path / "v2", file)


def test_a_group_that_is_not_its_own_is_left_alone(tmp_path: Path) -> None:
    file = tree(tmp_path, "6:freezer:/\n", "freezer", os.getpid() + 1)
    before = file.read_text()
    Foresight(tmp_path / "proc", tmp_path / "cgroup").begin()
    Foresight(tmp_path / "nothing", tmp_path / "cgroup").begin()
    assert file.read_text() == before
