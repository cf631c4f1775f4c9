"""The kernel is told beforehand only where this process's own group is really known."""

from __future__ import annotations

import _thread
import os
from pathlib import Path

import pytest

from lattice.helper.job_entry import Foresight, _join
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


def test_on_v2_the_process_is_moved_to_its_own_group(tmp_path: Path) -> None:
    lines = "0::/system.slice/helper.service\n"
    file = tree(tmp_path, lines, "system.slice/helper.service", os.getpid())
    wait_until_moved(tmp_path, file)


@pytest.mark.parametrize(
    ("lines", "group", "number"),
    [
        ("9:name=systemd:/x\n6:freezer:/a/b\n0::/\n", "freezer/a/b", os.getpid()),
        ("0::/a\n", "a", os.getpid() + 1),
    ],
    ids=["v1", "not its own"],
)
def test_no_other_group_is_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: str, group: str, number: int
) -> None:
    monkeypatch.setattr(_thread, "start_new_thread", lambda act, arguments: act(*arguments))
    file = tree(tmp_path, lines, group, number)
    before = file.read_text()
    Foresight(tmp_path / "proc", tmp_path / "cgroup").begin()
    Foresight(tmp_path / "nothing", tmp_path / "cgroup").begin()
    assert file.read_text() == before


@pytest.mark.spec("ATTACH-1")
@pytest.mark.parametrize(
    ("files", "written"),
    [(("tasks", "cgroup.procs"), "tasks"), (("cgroup.procs",), "cgroup.procs")],
)
def test_a_guest_joins_by_its_thread_where_that_is_possible(
    tmp_path: Path, files: tuple[str, ...], written: str
) -> None:
    for name in files:
        (tmp_path / name).touch()
    _join(str(tmp_path))
    assert {name: (tmp_path / name).read_text() for name in files} == {
        name: "0" if name == written else "" for name in files
    }


def test_a_group_that_is_gone_is_not_joined(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        _join(str(tmp_path / "gone"))
