"""Writes anchors of the audit log to a file that is only appended to, or to syslog."""

from __future__ import annotations

import asyncio
import logging
import logging.handlers
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

from lattice.base.clock import Clock
from lattice.domain.audit_anchor import anchor_text, read_anchors
from lattice.features.audit.service.chain import AuditChain

_log = logging.getLogger("lattice.audit")

SYSLOG = "syslog"
EVERY_S = 10.0
_NEWEST_BYTES = 4 * 1024 * 1024
"""How much of a file is read: the newest 30 000 lines."""


class AnchorWriter:
    """Writes a line whenever the log has grown, at most once in `EVERY_S`."""

    def __init__(
        self,
        chain: AuditChain,
        clock: Clock,
        target: str,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._chain = chain
        self._clock = clock
        self._target = target
        self._sleep = sleep
        self._written = 0
        self.failed_total = 0

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            await self.write()
            await self._sleep(EVERY_S)

    async def write(self) -> None:
        """Write a line if the log has grown since the last one."""
        head = self._chain.head
        if head is None or head.newest.sequence == self._written:
            return
        point = head.newest
        line = anchor_text(self._clock.now(), head.cluster, point)
        try:
            await asyncio.to_thread(_write_line, self._target, line)
        except OSError as problem:
            self.failed_total += 1
            _log.error("the anchor of the audit log can't be written", extra={"why": str(problem)})
            return
        self._written = point.sequence


def anchors_in(path: Path, cluster: str) -> dict[int, bytes]:
    """The newest anchors in a file; none if it does not exist."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _NEWEST_BYTES))
            text = file.read().decode("utf-8", "replace")
    except FileNotFoundError:
        return {}
    return read_anchors(text.splitlines(), cluster)


def _write_line(target: str, line: str) -> None:
    if target == SYSLOG:
        handler = logging.handlers.SysLogHandler("/dev/log")
        try:
            handler.emit(logging.makeLogRecord({"msg": line, "levelno": logging.INFO}))
        finally:
            handler.close()
        return
    with os.fdopen(
        os.open(target, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640), "w"
    ) as file:
        file.write(line + "\n")
        file.flush()
        os.fsync(file.fileno())
