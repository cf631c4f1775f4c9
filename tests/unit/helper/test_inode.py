"""Files by their descriptors: what `statx` says is what `stat` says, and more."""

from __future__ import annotations

import os
import select
from pathlib import Path

import pytest

from lattice.adapters.linux.inotify import Inotify
from lattice.helper.inode import Inodes


def test_the_same_as_stat_tells(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_text("four")
    place = os.open(file, os.O_PATH)
    found, real = Inodes().statx(place), file.stat()
    os.close(place)
    assert found.identity == (real.st_dev, real.st_ino)
    assert (found.mode, found.uid, found.size) == (real.st_mode, real.st_uid, 4)
    assert found.kind_fault == ""
    if found.born is not None:
        assert abs(found.born - real.st_mtime) < 5


@pytest.mark.parametrize(
    ("path", "word"), [("/dev/null", "device"), ("/tmp", "folder"), ("FIFO", "pipe")]
)
def test_what_is_no_file_is_named(tmp_path: Path, path: str, word: str) -> None:
    if path == "FIFO":
        path = str(tmp_path / "fifo")
        os.mkfifo(path)
    place = os.open(path, os.O_PATH)
    assert word in Inodes().statx(place).kind_fault
    os.close(place)


def test_a_descriptor_that_is_none() -> None:
    with pytest.raises(OSError, match="Bad file descriptor"):
        Inodes().statx(9999)


def test_writes_are_noticed(tmp_path: Path) -> None:
    inodes, instance = Inodes(), Inotify()
    notices = instance.fileno()
    with (tmp_path / "f").open("w") as file:
        number = inodes.watch(notices, file.fileno())
        assert number > 0
        file.write("x")
        file.flush()
        assert select.select([notices], [], [], 5)[0]
    with pytest.raises(OSError, match="No such file"):
        inodes.watch(notices, 9999)
    with (tmp_path / "f").open() as file, pytest.raises(OSError, match="Invalid argument"):
        inodes.watch(file.fileno(), file.fileno())
    instance.close()
