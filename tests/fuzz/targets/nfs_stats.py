"""`/proc/PID/mountstats`: whoever names a mount writes a part of this text.

- Any bytes give counts; no exception escapes.
- Only a line feed ends a line: what a mount is called adds no line and no mount.
- Every count follows from figures in the lines of its own mount.
"""

from __future__ import annotations

from collections.abc import Iterable

from lattice.probes.facts.mounts import MountCounts, read_mountstats

TOKENS = (
    b"device ",
    b" mounted on ",
    b" with fstype nfs statvers=1.1\n",
    b" with fstype nfs4 statvers=1.1\n",
    b" with fstype ext4\n",
    b"\tbytes:\t",
    b"\t        READ: 10 12 1 2000 50000 5 100 120 0\n",
    b"\\040",
    b"\\012",
    b"\\777",
    b"\n",
    b"\r",
    b"\x0b",
    b"\x1c",
    b"\xc2\x85",
    b"\xe2\x80\xa8",
    b"\xd9\xa3",
    b"1_0",
    b"-1",
    b"99999999999999999999",
    b"100000000000000000000",
)
_DIGITS = frozenset("0123456789")
_LONGEST = 20


def seeds() -> Iterable[bytes]:
    device = b"device a:/x mounted on %s with fstype nfs4 statvers=1.1\n"
    moved, read = b"\tbytes:\t1 2 3 4 5 6 7 8\n", b"\t  READ: 10 12 1 2000 50000 5 100 120 0\n"
    yield device % b"/x" + moved
    yield device % b"/x" + moved + read
    yield device % b"/x" + read.replace(b"10", b"0")
    yield device % b"/x" + moved + device % b"/x" + read
    yield device % b"/a\\040b\\012c" + moved
    yield device % b"/a\x0bdevice" + moved
    yield device % "/a\u2028device".encode() + moved
    yield device % b"/x" + b"\tbytes:\t1 2 3 4 5 1_0\n" + read.replace(b"12", b"-1")
    yield device % b"/x" + b"\tbytes:\t1 2 3 4 99999999999999999999 100000000000000000000\n"


def try_one(data: bytes) -> None:
    for text in (data.decode("ascii", "replace"), data.decode("utf-8", "replace")):
        told = read_mountstats(text)
        sections = _sections(text)
        assert told.keys() <= sections.keys(), "a mount that no line names"
        for path, counts in told.items():
            _check(counts, sections[path])


def _sections(text: str) -> dict[str, list[str]]:
    """The lines below each `device` line, by the mount point as the kernel escapes it."""
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in text.split("\n"):
        if line.startswith("device "):
            lines = []
            for start in _starts(line):
                found[start] = lines
        else:
            lines.append(line)
    return found


def _starts(line: str) -> Iterable[str]:
    words = line.split(" ")
    if len(words) > 4 and words[2:4] == ["mounted", "on"] and words[1] and words[4]:
        yield _unescaped(words[4])


def _unescaped(word: str) -> str:
    parts = word.split("\\")
    text = parts[0]
    for part in parts[1:]:
        code = part[:3]
        if len(code) == 3 and set(code) <= set("01234567"):
            text += chr(int(code, 8)) + part[3:]
        else:
            text += "\\" + part
    return text


def _check(counts: MountCounts, lines: list[str]) -> None:
    figures = [_figures(line) for line in lines]
    standing = {figure for line in figures for figure in line}
    for moved in (counts.read_bytes, counts.write_bytes):
        assert moved is None or moved in {float(each) for each in standing}
    sums = sum(figure for line in figures for figure in line)
    for summed in (counts.operations, counts.timeouts, counts.retransmits):
        assert summed is None or 0 <= summed <= float(sums)
    if counts.latency_s is not None:
        assert counts.operations, "a latency of no operation"
        assert 0 <= counts.latency_s <= sums / 1000


def _figures(line: str) -> list[int]:
    words = line.replace(":", " ").split()
    return [int(each) for each in words if set(each) <= _DIGITS and len(each) <= _LONGEST]
