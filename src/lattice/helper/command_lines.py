"""What the command line of a process tells: its program, its script, how it writes. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_PYTHON = re.compile(r"(?:python|pypy)[0-9.]*(?:-[a-z]+)?", re.ASCII)
_LONGEST_COMMAND = 128


def is_python(program: str, name: str) -> bool:
    """By its executable, else by its name."""
    base = program.removesuffix(" (deleted)").rpartition("/")[2] or name
    return _PYTHON.fullmatch(base) is not None


def arguments_of(cmdline: str) -> list[str]:
    return cmdline.rstrip("\0").split("\0") if cmdline.strip("\0") else []


def command_of(arguments: Sequence[str], name: str, *, python: bool) -> str:
    """Program and script without folders; other arguments may contain secrets."""
    if not arguments:
        return f"[{name}]"[:_LONGEST_COMMAND]
    program = _base(arguments[0]) or name
    script = _script(arguments[1:]) if python else ""
    return f"{program} {script}".strip()[:_LONGEST_COMMAND]


def is_unbuffered(
    arguments: Sequence[str], environment: Mapping[bytes, bytes] | None
) -> bool | None:
    """Whether a Python writes unbuffered; None: that could not be read."""
    if _flags(arguments[1:]).unbuffered:
        return True
    if environment is None or not arguments:
        return None
    ignored = _flags(arguments[1:]).ignores_environment
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


def _flags(arguments: Sequence[str]) -> _Flags:
    """Parse Python's own options, which end before its script."""
    unbuffered = ignores = False
    at = 0
    while at < len(arguments):
        argument = arguments[at]
        if not argument.startswith("-") or argument == "-":
            break
        if argument.startswith("--"):
            at += 1 if "=" in argument or argument != "--check-hash-based-pycs" else 2
            continue
        for index, letter in enumerate(argument[1:], 1):
            unbuffered |= letter == "u"
            ignores |= letter in "EI"
            if letter in "cm":
                rest = argument[index + 1 :] or (
                    arguments[at + 1] if at + 1 < len(arguments) else ""
                )
                return _Flags(unbuffered, ignores, (f"-{letter}", rest))
            if letter in "WX":
                at += index + 1 == len(argument)
                break
        at += 1
    return _Flags(unbuffered, ignores, arguments[at:])


def _script(arguments: Sequence[str]) -> str:
    rest = _flags(arguments).rest
    if not rest:
        return ""
    if rest[0] == "-m" and len(rest) > 1:
        return f"-m {rest[1]}"
    return "-c" if rest[0] == "-c" else _base(rest[0])


def _base(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]
