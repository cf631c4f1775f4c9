"""A process that stands before the lab's object store and lets it fail now and then.

    python -m tests.e2e.faulty_store PORT UPSTREAM SHARE SEED

Every request has the chance SHARE to meet a fault, drawn with SEED.
"""

from __future__ import annotations

import asyncio
import random
import sys

from tests.contract.faulty_proxy import Fault, FaultyProxy

FAULTS = (
    Fault.UNAVAILABLE,
    Fault.CUT_BEFORE,
    Fault.CUT_AFTER,
    Fault.DENIED_AFTER,
    Fault.TORN,
    Fault.HANG,
    Fault.HANG_AFTER,
)


async def serve(port: int, upstream: str, share: float, seed: int) -> None:
    """Until ended."""
    chance = random.Random(seed)

    def draw() -> Fault:
        return chance.choice(FAULTS) if chance.random() < share else Fault.NONE

    async with FaultyProxy(upstream, port=port, draw=draw):
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), sys.argv[2], float(sys.argv[3]), int(sys.argv[4])))
