"""What everyone may see of a process, hostile names and titles included."""

from __future__ import annotations

from pathlib import Path

import pytest

from lattice.adapters.linux.proc import process_info


def process(proc: Path, name: bytes, title: bytes) -> None:
    folder = proc / "7"
    folder.mkdir()
    (folder / "stat").write_bytes(b"7 (" + name + b") S 5 7 7 0\n")
    (folder / "cmdline").write_bytes(title)


@pytest.mark.parametrize(
    ("title", "words"),
    [
        (b"srun\0-J\0a -l b\0prog\0", ["srun", "-J", "a -l b", "prog"]),
        (b"slurmstepd: [7.0]\0\0\0", ["slurmstepd: [7.0]"]),
        (b"", [""]),
    ],
)
def test_words_stay_apart(tmp_path: Path, title: bytes, words: list[str]) -> None:
    process(tmp_path, b"a) S 9 (b", title)
    seen = process_info(tmp_path, 7)
    assert seen is not None
    assert seen[:2] == (5, "a) S 9 (b")
    assert seen[2].split("\0") == words


def test_one_that_is_gone(tmp_path: Path) -> None:
    assert process_info(tmp_path, 7) is None
