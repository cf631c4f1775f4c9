"""What is there stays; what comes is looked at rarely."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import gc
from lattice.base.process import MANY, settle
held = [[] for _ in range(5000)]
settle({young})
print(gc.get_freeze_count() >= 5000, gc.get_threshold()[0] == MANY)
"""


def _said(young: str) -> str:
    argv = [sys.executable, "-c", PROGRAM.format(young=young)]
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout.strip()


def test_what_a_process_began_with_is_not_looked_at_again() -> None:
    assert _said("") == "True False"


def test_and_what_comes_is_looked_at_when_there_is_much_of_it() -> None:
    assert _said("MANY") == "True True"
