"""Freed memory is overwritten in a process that executed itself again for it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lab.memory import places_of
from lattice.base import malloc
from lattice.base.malloc import NotOverwriting, overwriting_environment

# What an agent and a server do with text: read, split, decode, encode, pack and unpack it.
PROGRAM = """
import ctypes, json, os, sys
from lattice.base.malloc import overwrite_freed_memory, overwriting
from lattice.base.process import leave_no_core
from lattice.base.zstd import zstd
from lattice.domain.logchunk import compress_sensitive

if "overwrite" in sys.argv:
    overwrite_freed_memory()
if "no core" in sys.argv:
    leave_no_core()
    libc = ctypes.CDLL(None)
    assert libc.prctl(3, 0, 0, 0, 0) == 0  # PR_GET_DUMPABLE
os.write(1, b"yes\\n" if overwriting() else b"no\\n")


def use(size):
    text = os.read(0, size)
    lines = [each.decode() for each in text.split(b",")]
    record = json.loads(json.dumps({"lines": lines, "all": lines * 20}))
    packed = compress_sensitive(json.dumps(record).encode() * 4)
    grown = bytearray()
    for each in record["all"]:
        grown += each.encode()
    return len(zstd.decompress(packed)) + len(memoryview(bytes(grown)).tobytes())


use(65536)
os.write(1, b"done\\n")
os.read(0, 1)
"""


@contextmanager
def used(*arguments: str, marker: bytes = b"") -> Iterator[tuple[int, bool]]:
    """The pid of a process that used a text with the marker, and whether it overwrites."""
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        overwrites = process.stdout.readline() == b"yes\n"
        process.stdin.write(b",".join([b"line of " + marker] * 40))
        process.stdin.flush()
        assert process.stdout.readline() == b"done\n"
        yield process.pid, overwrites
        process.stdin.close()


def test_a_usual_process_keeps_parts_of_the_text_in_freed_memory() -> None:
    marker = os.urandom(12).hex().encode()
    with used(marker=marker) as (pid, overwrites):
        assert not overwrites
        assert places_of(pid, marker)


@pytest.mark.threat("sensitive-memory")
def test_a_process_that_overwrites_keeps_nothing() -> None:
    marker = os.urandom(12).hex().encode()
    with used("overwrite", marker=marker) as (pid, overwrites):
        assert overwrites
        assert places_of(pid, marker) == []


@pytest.mark.threat("sensitive-memory")
def test_no_core_is_left() -> None:
    with used("no core") as (pid, _):
        limits = Path(f"/proc/{pid}/limits").read_text()
        (cores,) = (each.split() for each in limits.splitlines() if "core" in each)
        assert cores[4:6] == ["0", "0"]


def test_other_tunables_stay() -> None:
    given = {"GLIBC_TUNABLES": "glibc.malloc.arena_max=2:glibc.malloc.perturb=1", "HOME": "/"}
    assert overwriting_environment(given) == {
        "HOME": "/",
        "PYTHONMALLOC": "malloc",
        "GLIBC_TUNABLES": "glibc.malloc.arena_max=2:"
        "glibc.malloc.perturb=165:glibc.malloc.tcache_count=0",
        "LD_BIND_NOW": "1",
    }


def test_a_process_executes_itself_once_only(monkeypatch: pytest.MonkeyPatch) -> None:
    executed: list[dict[str, str]] = []

    def execute(_program: str, _arguments: list[str], environment: dict[str, str]) -> None:
        executed.append(environment)

    malloc.overwrite_freed_memory(execute)  # type: ignore[arg-type]
    (environment,) = executed
    for name in malloc.OVERWRITES_NAMES:
        monkeypatch.delenv(name, raising=False)
    # As where the C library does not know the settings.
    monkeypatch.setenv("LATTICE_OVERWRITES_FREED_MEMORY", "1")
    assert "LATTICE_OVERWRITES_FREED_MEMORY" in environment
    with pytest.raises(NotOverwriting, match="glibc"):
        malloc.overwrite_freed_memory(execute)  # type: ignore[arg-type]
    assert len(executed) == 1
