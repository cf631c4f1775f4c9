from __future__ import annotations

import os
import time
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from lattice.adapters.linux.proc import (
    Proc,
    parse_boot_time,
    parse_owner,
    parse_pids,
    parse_start_ticks,
)
from lattice.domain.nodejobs import ProcessId
from tests.fakes.node_tree import BOOT_ID, BOOTED, NodeTree

_AFTER_NAME = ["S", *(str(field) for field in range(4, 60))]


@given(st.text(max_size=16))
def test_a_process_chooses_its_name_and_not_its_start(name: str) -> None:
    assert parse_start_ticks(f"7 ({name}) {' '.join(_AFTER_NAME)}") == 22


@given(st.text(max_size=200))
def test_nothing_in_proc_is_too_odd(text: str) -> None:
    for parse in (parse_start_ticks, parse_owner, parse_boot_time):
        figure = parse(text)
        assert figure is None or figure >= 0
    assert all(pid > 0 for pid in parse_pids(text))


@given(st.lists(st.integers(0, 4_194_304)))
def test_pids_of_other_namespaces_are_left_out(pids: list[int]) -> None:
    text = "".join(f"{pid}\n" for pid in pids)
    assert parse_pids(text) == [pid for pid in pids if pid]


def test_what_is_gone_is_none(tmp_path: Path) -> None:
    proc = Proc(NodeTree(tmp_path).proc, time.time)
    assert proc.boot_id == BOOT_ID
    assert (proc.process(9), proc.owner(9), proc.title(9)) == (None, None, None)
    assert not proc.hides_processes
    (tmp_path / "proc/1").rmdir()
    assert proc.hides_processes
    (tmp_path / "proc/stat").unlink()
    assert proc.wall_time(ProcessId(9, 100)) is None


def test_starts_in_wall_time_do_not_move(tmp_path: Path) -> None:
    tree = NodeTree(tmp_path)
    moments = iter([BOOTED + 1000.0, BOOTED + 2000.0, BOOTED + 50.0])
    proc = Proc(tree.proc, lambda: next(moments))
    process = proc.process(tree.process(ticks=100 * os.sysconf("SC_CLK_TCK")))
    assert process is not None
    assert [proc.wall_time(process) for _ in range(3)] == [
        *(BOOTED + 100.5, BOOTED + 100.5),
        BOOTED + 50.0,  # a start is never to come
    ]


def test_the_real_one() -> None:
    begun = time.time()
    proc = Proc(Path("/proc"), time.time)
    own = proc.process(os.getpid())
    init = proc.process(1)
    assert own is not None
    assert init is not None
    began = proc.wall_time(own)
    booted = proc.wall_time(init)
    assert began is not None
    assert booted is not None
    assert [booted, began, begun] == sorted([booted, began, begun])
    assert proc.owner(os.getpid()) == os.getuid()
    assert len(proc.boot_id) == 36
