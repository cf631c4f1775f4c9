"""The honest caller of `bench.soak.hostile`: how long `whoami` and `status ID` take, in ms.

    python -m bench.soak.hostile_honest JOB REPLICAS CA-FILE

The token is in LATTICE_TOKEN. It is told how many seconds to ask for, and says how long each
answer took over warm connections, the replicas in turn. Ten of each question a second.
"""

from __future__ import annotations

import http.client
import os
import ssl
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from bench.soak.orders import orders, say

EVERY_S = 0.1
_ANSWER_S = 60.0


@dataclass(slots=True)
class Asked:
    """What came of one question, asked again and again."""

    took_ms: list[float] = field(default_factory=list)
    failed: int = 0
    """Answers other than 200, and connections lost."""


def ask_for(
    seconds: float, path: str, lines: Sequence[http.client.HTTPSConnection], token: str, to: Asked
) -> None:
    """Each time at the next replica. The first answer of each only warms its connection."""
    headers = {"Authorization": f"Bearer {token}"}
    begun = time.monotonic()
    number = -len(lines)
    while time.monotonic() - begun < seconds:
        line = lines[number % len(lines)]
        sent = time.perf_counter()
        try:
            line.request("GET", path, headers=headers)
            answer = line.getresponse()
            answer.read()
            ok = answer.status == http.client.OK
        except (OSError, http.client.HTTPException):
            line.close()
            ok = False
        if number >= 0:
            to.took_ms.append((time.perf_counter() - sent) * 1000)
        to.failed += not ok
        number += 1
        time.sleep(max(0.0, EVERY_S - (time.perf_counter() - sent)))
    for line in lines:
        # The server would, before the next round.
        line.close()


def main(job: str, replicas: str, authority: str) -> None:
    tls, token = ssl.create_default_context(cafile=authority), os.environ["LATTICE_TOKEN"]
    paths = {"whoami": "/v1/auth/whoami", "status": f"/v1/allocations/{job}"}
    lines = {
        name: [
            http.client.HTTPSConnection(each, context=tls, timeout=_ANSWER_S)
            for each in replicas.split(",")
        ]
        for name in paths
    }
    for order in orders():
        found = {name: Asked() for name in paths}
        threads = [
            threading.Thread(
                target=ask_for, args=(float(order), path, lines[name], token, found[name])
            )
            for name, path in paths.items()
        ]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        told = {name: each.took_ms for name, each in found.items()}
        say({"took_ms": told, "failed": {name: each.failed for name, each in found.items()}})


if __name__ == "__main__":
    main(*sys.argv[1:])
