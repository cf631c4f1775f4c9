"""Long output through a pager, and short output without one."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from lattice.base.text import cells

if TYPE_CHECKING:
    from subprocess import Popen

_LESS = "less -FRX"


def page(
    texts: Iterable[str], environment: Mapping[str, str], *, width: int | None, height: int | None
) -> None:
    """Write texts; if they are longer than the screen, all of them to a pager."""
    rest = iter(texts)
    held: list[str] = []
    rows = 0
    for text in rest:
        held.append(text)
        rows += _rows(text, width)
        if height is not None and rows >= height - 1:
            break
    else:
        _write(held)
        return
    command = environment.get("PAGER", _LESS)
    if not command.strip() or command.strip() == "cat":
        _write(held)
        _write(rest)
        return
    _through(command, held, rest, environment)


def _rows(text: str, width: int | None) -> int:
    if width is None or len(text) < width:
        return text.count("\n")
    return sum(max(-(-cells(line) // width), 1) for line in text.split("\n")[:-1])


def _write(texts: Iterable[str]) -> None:
    for text in texts:
        sys.stdout.write(text)
    sys.stdout.flush()


def _through(
    command: str, held: list[str], rest: Iterator[str], environment: Mapping[str, str]
) -> None:
    import shutil  # noqa: PLC0415 - only paging pays for these
    import subprocess  # noqa: PLC0415

    argv = command.split()
    if shutil.which(argv[0], path=environment.get("PATH")) is None:
        _write(held)
        _write(rest)
        return
    # As git does: options for less, under whichever name it was started.
    settings = {"LESS": "FRX", "LESSSECURE": "1"} | dict(environment)
    pager = subprocess.Popen(
        argv, stdin=subprocess.PIPE, env=settings, encoding="utf-8", errors="backslashreplace"
    )
    assert pager.stdin is not None
    interrupted: KeyboardInterrupt | None = None
    try:
        for texts in (held, rest):
            for text in texts:
                pager.stdin.write(text)
            pager.stdin.flush()
    except BrokenPipeError:
        pass  # the person left before the end, which is no error
    except KeyboardInterrupt as signal:
        interrupted = signal
    finally:
        _wait(pager)
    if interrupted is not None:
        raise interrupted


def _wait(pager: Popen[str]) -> None:
    assert pager.stdin is not None
    # The rest of the buffer can't be written after the reader has left, nor need it be.
    with suppress(BrokenPipeError):
        pager.stdin.close()
    while True:
        try:
            pager.wait()
        except KeyboardInterrupt:
            continue  # meant for the pager, which owns the terminal until it ends
        return
