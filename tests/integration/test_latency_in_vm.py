"""The stories of the eBPF program on another kernel: an older one, with cgroup v2 alone.

They are those of `test_latency.py`, run in a virtual machine by a pytest of its own.
"""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path

import pytest

from lab.bare_machine import BareMachine
from scripts.nightly import tally
from tests.integration import test_latency

pytestmark = [pytest.mark.vm, pytest.mark.timeout(1200)]
ROOT = Path(__file__).resolve().parents[2]
STORIES = Path(test_latency.__file__).relative_to(ROOT)
NEEDS_V1 = "test_the_p99_of_a_slow_disk_is_the_program_s_own_and_jobs_are_kept_apart"
"""It throttles a disk with the blkio controller."""
# On a tmpfs: the files of an overlay have other device numbers than their mount.
SCRATCH = Path("/dev/shm/stories")


@pytest.mark.skipif(os.geteuid() != 0, reason="a virtual machine needs root")
@pytest.mark.spec("TOP-2", "DIAG-2", "DIAG-3")
def test_the_program_loads_and_counts_on_an_older_kernel(tmp_path: Path) -> None:
    machine = BareMachine(tmp_path / "machine")
    report = SCRATCH.with_suffix(".xml")
    # Without rewritten assertions: to rewrite them takes a minute there.
    pytest_words = ["-q", "-p", "no:cacheprovider", "--assert=plain", f"--basetemp={SCRATCH}"]
    argv = [sys.executable, "-m", "pytest", *pytest_words, f"--junitxml={report}", str(STORIES)]
    try:
        machine.boot()
        assert machine.run(["uname", "-r"]).stdout.strip() != platform.release()
        assert "cgroup2" in machine.run(["stat", "-fc", "%T", "/sys/fs/cgroup"]).stdout
        done = machine.run(["env", "-C", str(ROOT), *argv], timeout_s=900, check=False)
        found = tally(machine.run(["cat", str(report)], check=False).stdout or "<none/>")
    finally:
        machine.end()
    assert found.failed == 0, done.stdout
    assert found.passed, (done.stdout, done.stderr)
    skipped = {name.rpartition("::")[2] for name, became in found.tests.items()
               if became == "skipped"}  # fmt: skip
    assert skipped <= {NEEDS_V1}
