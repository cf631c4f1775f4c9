"""The lab's own error, and the one way it runs a short command."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Mapping, Sequence


class LabError(Exception):
    """A part of the lab did not do what was asked; the message says which and shows its output."""


def run(
    argv: Sequence[str],
    *,
    input: str | None = None,  # noqa: A002  as subprocess calls it
    env: Mapping[str, str] | None = None,
    timeout_s: float = 60.0,
    check: bool = True,
    shown: Sequence[str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; raise with its output if it fails and `check` is set.

    `shown` is the command as an error names it, where argv begins with words nobody asked for.
    """
    name = shlex.join(shown or argv)
    try:
        done = subprocess.run(
            argv,
            input=input,
            stdin=subprocess.DEVNULL if input is None else None,
            env=env,
            timeout=timeout_s,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        raise LabError(f"{name}: no end after {timeout_s:g} s") from late
    if check and done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip())[-2000:]
        raise LabError(f"{name}: exit status {done.returncode}: {said}")
    return done
