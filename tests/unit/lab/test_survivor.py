"""What is said of a process that can't be ended."""

from __future__ import annotations

from pathlib import Path

from lab.survivor import Survivor


def process(proc: Path, pid: int, state: str, channel: str, *, name: str = "cat") -> None:
    folder = proc / str(pid)
    folder.mkdir(parents=True)
    (folder / "comm").write_text(f"{name}\n")
    (folder / "stat").write_text(f"{pid} ({name}) {state} 77 1 1 0 -1")
    (folder / "wchan").write_text(channel)


def test_it_has_a_name_a_state_and_a_wait_channel(tmp_path: Path) -> None:
    process(tmp_path, 5, "D", "request_wait_answer")
    assert str(Survivor.of(5, tmp_path)) == (
        "process 5 (cat) is in state D (in an uninterruptible wait), waiting in request_wait_answer"
    )


def test_a_name_may_hold_anything(tmp_path: Path) -> None:
    process(tmp_path, 5, "S", "do_wait", name="a) Z (b")
    assert Survivor.of(5, tmp_path) == Survivor(5, "a) Z (b", "S", "do_wait", 77)


def test_a_thread_that_hangs_counts_and_not_the_first_that_ended(tmp_path: Path) -> None:
    process(tmp_path, 5, "Z", "0")
    process(tmp_path / "5/task", 5, "Z", "0")
    process(tmp_path / "5/task", 6, "S", "futex_wait")
    process(tmp_path / "5/task", 7, "D", "folio_wait")
    assert Survivor.of(5, tmp_path) == Survivor(5, "cat", "D", "folio_wait", 77)


def test_an_ended_one_is_told_with_who_should_collect_it(tmp_path: Path) -> None:
    process(tmp_path, 5, "Z", "0")
    assert str(Survivor.of(5, tmp_path)) == (
        "process 5 (cat) is in state Z (ended, but not collected by its parent): process 77"
    )


def test_a_kernel_that_names_no_channel_has_a_stack(tmp_path: Path) -> None:
    process(tmp_path, 5, "D", "0")
    (tmp_path / "5/stack").write_text("[<0>] wait_on_bit+0x11/0x20\n[<0>] other+0x1/0x2\n")
    assert Survivor.of(5, tmp_path).waits_in == "wait_on_bit"


def test_one_that_has_gone_meanwhile(tmp_path: Path) -> None:
    assert str(Survivor.of(5, tmp_path)) == "process 5 (gone) is in state unknown"
