"""Ten thousand cuts of streams at arbitrary bytes, on the real wire; content compared.

just soak cuts [CUTS] [SEED]
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path

from tests.integration.link.cuts import run_cuts
from tests.integration.link.site import Site


async def main(cuts: int, seed: int) -> None:
    done = messages = connections = size = 0
    begun = time.monotonic()
    while done < cuts:
        with tempfile.TemporaryDirectory() as folder:
            async with Site(Path(folder)) as site:
                run = await run_cuts(site, min(500, cuts - done), seed)
        done += run.cuts
        messages += run.messages
        connections += run.connections
        size += run.bytes_each_way
        seed += 1
    figure = {
        "name": "cuts without a byte lost, repeated or out of place",
        "value": done,
        "unit": "cuts",
        "bare": None,
        "ratio": None,
        "goal": cuts,
        "ok": True,
        "messages": messages,
        "connections": connections,
        "bytes_each_way": size,
        "seconds": round(time.monotonic() - begun, 1),
    }
    print(json.dumps(figure))


if __name__ == "__main__":
    words = [int(each) for each in sys.argv[1:]]
    asyncio.run(main(*(words + [10_000, 1][len(words) :])))
