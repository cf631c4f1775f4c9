"""A process that stands before the lab's object store and makes what a job wrote look older.

    python -m tests.e2e.aged_store PORT UPSTREAM JOB DAYS

So the end of a retention of days can be shown. Lists of objects have other times; all else passes.
"""

from __future__ import annotations

import asyncio
import re
import sys
from datetime import datetime, timedelta

from tests.contract.faulty_proxy import FaultyProxy
from tests.fakes.s3_server import Request

_OBJECT = re.compile(rb"<Contents>.*?</Contents>", re.DOTALL)
_MODIFIED = re.compile(rb"(?<=<LastModified>)([0-9-]{10})(?=T)")


class AgedStore(FaultyProxy):
    """Without faults. A time keeps its length, and so does the answer."""

    def __init__(self, upstream: str, *, port: int, job: str, days: int) -> None:
        super().__init__(upstream, port=port)
        self._job = f"/{job}/".encode()
        self._days = days

    async def _forward(self, request: Request) -> bytes:
        return _OBJECT.sub(self._aged, await super()._forward(request))

    def _aged(self, found: re.Match[bytes]) -> bytes:
        if self._job not in found[0]:
            return found[0]
        return _MODIFIED.sub(self._earlier, found[0])

    def _earlier(self, found: re.Match[bytes]) -> bytes:
        day = datetime.fromisoformat(found[1].decode()) - timedelta(days=self._days)
        return day.date().isoformat().encode()


async def serve(port: int, upstream: str, job: str, days: int) -> None:
    """Until ended."""
    async with AgedStore(upstream, port=port, job=job, days=days):
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])))
