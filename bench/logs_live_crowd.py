"""Many viewers of one job in one process, or one that hardly reads. Run in the lab's network.

    python -m bench.logs_live_crowd COUNT URL CA JOB PAUSE_S < TOKEN

Prints `ready` when every viewer has had a line; then, at each line of its input, how many bytes and
lines all of them have had so far.
"""

from __future__ import annotations

import asyncio
import json
import sys

from bench.log_viewers import Viewers
from lattice.client import Settings

_APART_S = 0.03


async def main(count: int, url: str, ca: str, job: str, pause_s: float) -> None:
    loop = asyncio.get_running_loop()
    token = (await loop.run_in_executor(None, sys.stdin.readline)).strip()
    viewers = Viewers(Settings((url,), ca=ca, token=token), job, count, pause_s=pause_s)
    await viewers.start({"tail": 1}, apart_s=_APART_S)
    while viewers.seated < count:
        await asyncio.sleep(0.1)
        viewers.check()
    print("ready", flush=True)
    while await loop.run_in_executor(None, sys.stdin.readline):
        had = {
            "bytes": sum(each.bytes for each in viewers.each),
            "lines": sum(each.lines for each in viewers.each),
            "lost": viewers.lost,
        }
        print(json.dumps(had), flush=True)


if __name__ == "__main__":
    number, address, authority, followed, pause = sys.argv[1:]
    asyncio.run(main(int(number), address, authority, followed, float(pause)))
