"""The stories that are too long for the gate, those of the emulated node among them (another
kernel, pure cgroup v2): `just soak stories`.

One JSON line for each of them, with its seconds; exit status 1 if one does not hold.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

_SETUP = Path(__file__).parents[2] / "scripts" / "setup"


class Stories:
    """Told as each ends."""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call" and report.passed:
            return
        figure = {
            "name": f"story: {report.nodeid.rpartition('::')[2]}",
            "value": round(report.duration, 1),
            "unit": "s",
            "bare": None,
            "ratio": None,
            "goal": None,
            "ok": report.passed,
        }
        print(json.dumps(figure), file=sys.__stdout__, flush=True)


def main() -> int:
    # With what only these need; standard output is for the figures.
    subprocess.run([str(_SETUP), "long"], check=True, stdout=sys.stderr)
    words = ["-q", "-p", "no:cacheprovider", "-m", "long", "tests"]
    with contextlib.redirect_stdout(sys.stderr):
        return int(pytest.main(words, plugins=[Stories()]))


if __name__ == "__main__":
    sys.exit(main())
