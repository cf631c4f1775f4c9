"""`lattice bench compare`: two captures, with the intervals of their differences."""

from __future__ import annotations

from pathlib import Path

from lattice.base.command import Argument, Command
from lattice.base.errors import UsageError
from lattice.base.shell import Shell
from lattice.base.text import inert
from lattice.features.bench.model import (
    LARGEST_BYTES,
    BadCapture,
    Capture,
    compared_captures,
    read_capture,
)
from lattice.features.bench.render import comparison_text


def compare(shell: Shell, *, a: str, b: str) -> int:
    """Show what differs between two machines."""
    comparison = compared_captures(_capture(a), _capture(b))
    if shell.output in {"json", "yaml"}:
        shell.document(comparison)
    else:
        shell.write(comparison_text(comparison, shell.style))
    return 0


def _capture(name: str) -> Capture:
    try:
        with Path(name).open("rb") as file:
            raw = file.read(LARGEST_BYTES + 1)
        return read_capture(raw)
    except OSError as error:
        raise UsageError(f"Can't read {inert(name)}: {error.strerror}.") from None
    except BadCapture as error:
        raise UsageError(f"{inert(name)} can't be compared: {error}.") from None


COMPARE = Command(
    "bench compare",
    summary="Compare two files of `bench capture`",
    text="The differences of B from A with their 95 % intervals, by the statistics of "
    "`lattice compare`, and the facts in which the machines differ. It needs no server.",
    run=compare,
    params=(Argument("a"), Argument("b")),
    examples=(("lattice bench compare host.json guest.json", "what the guest loses"),),
    permission="none: it asks no server",
    alone=True,
)
