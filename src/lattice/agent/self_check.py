"""What the agent itself lacks on its node, checked every 30 s: its helper, room on its disk.

Servers show it in `lattice admin agents`, in `lattice diag` of a job on the node, and in doctor.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

_log = logging.getLogger(__name__)

EVERY_S = 30.0
_CONNECT_S = 3.0
LEAST_FREE_BYTES = 16 * 1024 * 1024
_LEAST_FREE_INODES = 16


class SelfCheck:
    """`current` is what was missing at the last check."""

    def __init__(
        self,
        helper: Path,
        state_dir: Path,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._helper = helper
        self._state_dir = state_dir
        self._sleep = sleep
        self._lacks: tuple[str, ...] = ()

    def current(self) -> tuple[str, ...]:
        return self._lacks

    async def run(self) -> None:
        """Check until cancelled."""
        while True:
            await self.check()
            await self._sleep(EVERY_S)

    async def check(self) -> None:
        lacks = (*await self._of_helper(), *_of_disk(self._state_dir))
        for each in sorted(set(lacks) - set(self._lacks)):
            _log.warning("agent lacks", extra={"what": each})
        if self._lacks and not lacks:
            _log.info("agent lacks nothing any more")
        self._lacks = lacks

    async def _of_helper(self) -> tuple[str, ...]:
        reason = await _refusal(self._helper)
        if not reason:
            return ()
        lack = (
            f"lattice-helper: {self._helper}: {reason}. No terminals in jobs, no output files that "
            "only their owner may read. On the node: systemctl restart lattice-helper"
        )
        return (lack,)


async def _refusal(path: Path) -> str:
    """Why the helper can't be reached; empty if it can. An empty connection costs it nothing."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.setblocking(False)
        try:
            async with asyncio.timeout(_CONNECT_S):
                await asyncio.get_running_loop().sock_connect(connection, str(path))
        except TimeoutError:
            return "no answer"
        except OSError as error:
            return error.strerror or str(error)
    return ""


def _of_disk(folder: Path) -> Iterator[str]:
    try:
        disk = os.statvfs(folder)
    except OSError as error:
        yield f"state folder {folder}: {error.strerror}"
        return
    free_bytes = disk.f_bavail * disk.f_frsize
    if disk.f_flag & os.ST_RDONLY:
        yield f"state folder {folder}: its file system is read-only"
    elif free_bytes < LEAST_FREE_BYTES:
        yield (
            f"state folder {folder}: {free_bytes // 1024} KiB are free. Certificates can't be "
            "renewed, and after a restart output may be sent twice. Make room there"
        )
    elif disk.f_files and disk.f_favail < _LEAST_FREE_INODES:
        yield f"state folder {folder}: no inode is free. Remove files there"
