"""Parses the kernel's texts about one process: state, times, program, buffering. Pure.

A text that does not have the kernel's format counts as unknown.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_PYTHON = re.compile(r"(?:python|pypy)[0-9.]*(?:-[a-z]+)?", re.ASCII)
_FUNCTION = re.compile(r"[A-Za-z_][A-Za-z0-9_.]{0,127}", re.ASCII)
_STATES = frozenset("RSDTtZXxKWPI")
_LONGEST_COMMAND = 128
_LONGEST_FIGURE = 20
_STATE, _PARENT, _USER_TIME, _SYSTEM_TIME, _START = 0, 1, 11, 12, 19
"""Indexes of the fields of `/proc/PID/stat` after the name."""


@dataclass(frozen=True, slots=True)
class ProcessStat:
    """Times in clock ticks."""

    name: str
    state: str
    parent: int
    cpu: int
    started: int
    """Since the node started."""


def read_stat(text: str) -> ProcessStat | None:
    """Parse `/proc/PID/stat`; the name in it may contain any character."""
    head, closing, rest = text.rpartition(")")
    _, opening, name = head.partition("(")
    words = rest.split()
    if not (opening and closing) or len(words) <= _START or words[_STATE] not in _STATES:
        return None
    told = [_figure(words[at]) for at in (_PARENT, _USER_TIME, _SYSTEM_TIME, _START)]
    if any(each is None for each in told):
        return None
    parent, user, system, started = (each or 0 for each in told)
    return ProcessStat(name, words[_STATE], parent, user + system, started)


def waits_in(text: str) -> str:
    """The kernel function in `wchan`; empty if the process runs or the kernel hides it."""
    told = text.strip()
    return told if _FUNCTION.fullmatch(told) else ""


def is_python(program: str, name: str) -> bool:
    """By its executable, else by its name."""
    base = program.removesuffix(" (deleted)").rpartition("/")[2] or name
    return _PYTHON.fullmatch(base) is not None


def words_of(cmdline: str) -> list[str]:
    """The arguments of `/proc/PID/cmdline`."""
    return cmdline.rstrip("\0").split("\0") if cmdline.strip("\0") else []


def command_of(words: Sequence[str], name: str, *, python: bool) -> str:
    """Program and script without folders; other arguments may contain secrets."""
    if not words:
        return f"[{name}]"[:_LONGEST_COMMAND]
    program = _base(words[0]) or name
    script = _script(words[1:]) if python else ""
    return f"{program} {script}".strip()[:_LONGEST_COMMAND]


def is_unbuffered(words: Sequence[str], environment: Mapping[bytes, bytes] | None) -> bool | None:
    """Whether a Python writes unbuffered; None: that could not be read."""
    if _flags(words[1:]).unbuffered:
        return True
    if environment is None or not words:
        return None
    ignored = _flags(words[1:]).ignores_environment
    return bool(environment.get(b"PYTHONUNBUFFERED")) and not ignored


def is_piped(link: str) -> bool | None:
    """Whether a program writes to this target in blocks; None: not known.

    Decided by its name alone: reading a file on a dead share would block.
    """
    if link.startswith(("/dev/pts/", "/dev/tty", "/dev/console")):
        return False
    if link.startswith(("pipe:[", "socket:[")):
        return True
    if link.startswith("/dev/") and not link.startswith("/dev/shm/"):  # noqa: S108
        return None
    return True if link.startswith("/") else None


@dataclass(frozen=True, slots=True)
class _Flags:
    unbuffered: bool
    ignores_environment: bool
    rest: Sequence[str]
    """Starts with the script, `-m` or `-c`."""


def _flags(words: Sequence[str]) -> _Flags:
    """Parse Python's own options, which end before its script."""
    unbuffered = ignores = False
    at = 0
    while at < len(words):
        word = words[at]
        if not word.startswith("-") or word == "-":
            break
        if word.startswith("--"):
            at += 1 if "=" in word or word != "--check-hash-based-pycs" else 2
            continue
        for place, letter in enumerate(word[1:], 1):
            unbuffered |= letter == "u"
            ignores |= letter in "EI"
            if letter in "cm":
                rest = word[place + 1 :] or (words[at + 1] if at + 1 < len(words) else "")
                return _Flags(unbuffered, ignores, (f"-{letter}", rest))
            if letter in "WX":
                at += place + 1 == len(word)
                break
        at += 1
    return _Flags(unbuffered, ignores, words[at:])


def _script(words: Sequence[str]) -> str:
    rest = _flags(words).rest
    if not rest:
        return ""
    if rest[0] == "-m" and len(rest) > 1:
        return f"-m {rest[1]}"
    return "-c" if rest[0] == "-c" else _base(rest[0])


def _base(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]


def _figure(text: str) -> int | None:
    fits = text.isascii() and text.isdigit() and len(text) <= _LONGEST_FIGURE
    return int(text) if fits else None
