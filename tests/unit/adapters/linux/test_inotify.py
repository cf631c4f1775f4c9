from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.adapters.linux.inotify import FileNotice, Inotify


@pytest.fixture
def inotify() -> Iterator[Inotify]:
    one = Inotify()
    yield one
    one.close()


def test_folders_that_come_and_go(tmp_path: Path, inotify: Inotify) -> None:
    assert inotify.watch(str(tmp_path))
    (tmp_path / "a").mkdir()
    (tmp_path / "a").rmdir()
    folder = str(tmp_path)
    assert inotify.read() == [FileNotice(folder, "a", made=True), FileNotice(folder, "a")]
    assert inotify.read() == []


def test_a_watch_goes_with_its_folder(tmp_path: Path, inotify: Inotify) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    assert inotify.watch(str(inner))
    assert inotify.watch(str(inner))
    assert inotify.watches == 1
    inner.rmdir()
    inotify.read()
    assert inotify.watches == 0
    assert not inotify.watch(str(inner))


def test_files_and_closed_folders_are_no_trouble(tmp_path: Path, inotify: Inotify) -> None:
    (tmp_path / "file").touch()
    assert not inotify.watch(str(tmp_path / "file"))
    assert not inotify.watch(str(tmp_path / "missing/deeper"))


def test_an_overflow_is_told(tmp_path: Path, inotify: Inotify) -> None:
    most = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    assert inotify.watch(str(tmp_path))
    folder = tmp_path / "a"
    for _ in range(most // 2 + 1):
        folder.mkdir()
        folder.rmdir()
    notices = inotify.read()
    assert FileNotice(lost=True) in notices
    assert len(notices) <= most + 1
    folder.mkdir()
    assert inotify.read() == [FileNotice(str(tmp_path), "a", made=True)]


@given(st.binary(max_size=200))
def test_no_answer_of_the_kernel_is_too_odd(data: bytes) -> None:
    one = Inotify()
    try:
        one.watch("/")
        one._decode(data)
    finally:
        one.close()
