"""A daemon hears its signals and its children, whatever its parent had it ignore or block."""

from __future__ import annotations

import signal
import subprocess
import sys

from tests.fakes.hostile_parent import leave_odd_things, signal_sets

_CODE = """
import subprocess, sys
from lattice.base.process import reset_inherited_signals
reset_inherited_signals()
print(open("/proc/self/status").read())
sys.exit(subprocess.run(["sh", "-c", "exit 7"]).returncode)
"""


def test_children_are_counted_and_no_signal_is_blocked() -> None:
    run = subprocess.run(
        [sys.executable, "-c", _CODE],
        preexec_fn=leave_odd_things,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 7, run.stderr
    signals = signal_sets(run.stdout)
    assert signals["SigBlk"] == set()
    assert signal.SIGCHLD not in signals["SigIgn"]
    assert signal.SIGHUP in signals["SigIgn"]  # somebody asked for that, as `nohup` does
