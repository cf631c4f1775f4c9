"""Ten thousand times the process to be entered dies, and its number is given to another's.

just soak pid_reuse [TIMES]
"""

from __future__ import annotations

import json
import subprocess
import sys
import time

from lab.users import ensure_accounts


def main(times: int) -> None:
    """In a pid namespace of its own, where numbers can be chosen."""
    ensure_accounts()
    begun = time.monotonic()
    apart = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child=KILL")
    attack = (sys.executable, "-m", "tests.e2e.pid_reuse", str(times))
    run = subprocess.run([*apart, *attack], capture_output=True, text=True, check=True)
    told = json.loads(run.stdout.splitlines()[-1])
    figure = {
        "name": "reused process numbers that were entered",
        "value": told["entered"],
        "unit": "entered",
        "bare": None,
        "ratio": None,
        "goal": 0,
        "ok": told["entered"] == 0 and told["refused"] == times,
        "tries": told["tries"],
        "reused": told["reused"],
        "seconds": round(time.monotonic() - begun, 1),
    }
    print(json.dumps(figure))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000)
