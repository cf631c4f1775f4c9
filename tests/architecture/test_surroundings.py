"""Tests pass whatever the process that starts them has ignored, blocked or closed."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.hostile_parent import leave_odd_things, signal_sets
from tests.surroundings import UMASK

_CHECKOUT = Path(__file__).parents[2]
_CODE = """
import os
from tests.surroundings import restore
restore()
os.execvp("sh", ["sh", "-c", "cat /proc/self/status; echo; umask; readlink /proc/self/fd/0"])
"""
_SENSITIVE = (
    "tests/unit/helper/test_holder.py::test_a_client_that_says_its_last_hangs_up",
    "tests/unit/helper/test_holder.py::test_a_signal_goes_to_what_runs_in_front",
    "tests/unit/cli/test_attach_pipes.py::test_a_signal_is_passed_on",
    "tests/unit/cli/test_attach_terminal.py::test_a_signal_ends_it_and_puts_the_terminal_right",
    "tests/unit/helper/test_probing_mounts.py",
)


def _run(*argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *argv],
        cwd=_CHECKOUT,
        # An odd parent is what is tested; no thread runs between its fork and exec.
        preexec_fn=leave_odd_things,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_started_program_finds_default_signals_umask_and_streams() -> None:
    run = _run("-c", _CODE)
    status, _, rest = run.stdout.partition("\n\n")
    # Python ignores these two by itself; `subprocess` restores them.
    python = {signal.SIGPIPE, signal.SIGXFSZ}
    assert signal_sets(status) == {"SigBlk": set(), "SigIgn": python}, run.stderr
    assert rest.split() == [f"{UMASK:04o}", "/dev/null"]


@pytest.mark.long
def test_tests_of_signals_pass_below_an_odd_parent() -> None:
    run = _run("-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not timing", *_SENSITIVE)
    assert run.returncode == 0, run.stdout[-4000:]
