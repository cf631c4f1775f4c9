"""Builds the agent's part of logs: collecting, its budget, and shipping."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from lattice.adapters.helper.channel import HelperChannel
from lattice.adapters.helper.outputs import HelperOutputs
from lattice.adapters.linux.nodejobs import NodeJobs
from lattice.adapters.linux.process_info import process_look
from lattice.agent.config import AgentSettings
from lattice.agent.intake import LinkedIntake
from lattice.base.clock import Clock
from lattice.base.supervisor import Loop, OnFailure
from lattice.features.link.node.dialler import Dialling
from lattice.features.link.node.keeper import LinkLine
from lattice.features.link.node.servertime import ServerTime
from lattice.features.logs.node.budget import Budget
from lattice.features.logs.node.collector import Collecting
from lattice.features.logs.node.feed import LogFeed
from lattice.features.logs.node.quota import NO_QUOTA
from lattice.features.logs.node.shipper import Shipping
from lattice.features.logs.node.spool import StreamSpool
from lattice.features.logs.node.writers import ProcessLook

_PROC = Path("/proc")


class LogParts:
    """Follows the output of this node's jobs."""

    def __init__(
        self,
        told: AgentSettings,
        jobs: NodeJobs,
        dialling: Dialling,
        link: Callable[[], LinkLine | None],
        clock: Clock,
        servers: ServerTime,
        helper: HelperChannel,
    ) -> None:
        config = told.config
        folder = config.state_dir / "logs"
        folder.mkdir(mode=0o700, exist_ok=True)
        self._loop = asyncio.get_running_loop()
        intake = LinkedIntake(dialling, lambda: line.address if (line := link()) else "", servers)
        self.budget = Budget(folder, config.logs.spool_mb * 1024 * 1024, self._spools)
        self.collecting = Collecting(
            told.node,
            folder,
            intake,
            HelperOutputs(helper),
            jobs,
            _look,
            clock,
            stamps=servers,
            room=self.budget.room,
            on_closed=self._chunk_closed,
            quota_bytes=config.logs.job_quota_mb * 1024 * 1024 or NO_QUOTA,
        )
        self.feed = LogFeed(
            lambda: self.collecting.followed,
            unread=self.collecting.unread,
            told=servers.told,
            ahead_s=lambda: servers.ahead_s,
        )
        self.shipping = Shipping(intake, self._spools, self.collecting.stored)

    def loops(self) -> tuple[Loop, ...]:
        """Its background loops."""
        return (
            # A reader that hangs on a dead share ends only with the process. A second one beside it
            # would write to the same spool.
            Loop("logs", self.collecting.run, OnFailure.END),
            Loop("logs missed", self.collecting.take_up_missed, OnFailure.RESTART),
            Loop("logs budget", self.budget.run, OnFailure.RESTART),
            Loop("logs shipping", self.shipping.run, OnFailure.RESTART),
        )

    def _chunk_closed(self) -> None:
        # Called in the thread of a capture.
        self._loop.call_soon_threadsafe(self.shipping.nudge)

    def _spools(self) -> tuple[StreamSpool, ...]:
        return tuple(self.collecting.spools())


def _look(pid: int) -> ProcessLook | None:
    seen = process_look(_PROC, pid)
    return ProcessLook(*seen) if seen else None
