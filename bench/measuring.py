"""A server as agents meet it, for benches: its listener, its intakes and what stands behind them.

Real are the listener with its certificates and its guard, the links, the intake of samples and of
output, and what agents are told of their jobs. Made up are Slurm, which says which jobs run, and
the agreed state, which is in memory.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import structlog

from lattice.base.clock import SystemClock
from lattice.base.errors import NotFound
from lattice.domain.metricstore import MetricStore
from lattice.domain.outputs import NamedOutputs
from lattice.domain.vcluster import Vclusters
from lattice.features.link.service.peers import Peers
from lattice.server.agents import open_agents, with_single_identity
from lattice.server.figures import Figures
from lattice.server.journal import LoggedJournal
from lattice.server.limits import NoOtherReplica, Rates, limit_table
from lattice.server.links import Intakes, open_links, open_reach
from lattice.server.logs import log_intake
from lattice.server.sections import Address, ApiSection, RateLimitsSection, ServerConfig
from lattice.server.telemetry import TelemetryIntake, TelemetryNeeds, open_telemetry
from tests.fakes.in_memory_objects import InMemoryObjectStore
from tests.fakes.in_memory_scheduler import InMemoryScheduler
from tests.fakes.in_memory_state import InMemoryStateStore
from tests.fakes.sharing import sharing_parts

HERE = "127.0.0.1"
_REPLICA = "r1"
_TICKS = os.sysconf("SC_CLK_TCK")


class StillScheduler(InMemoryScheduler):
    """Nothing changes in it, so that it is read once and found the same from then on."""

    def read(self) -> None:
        if self._cluster is None:
            super().read()
        else:
            self._cluster = self._cluster.confirmed(self._clock.now())
            self._read_at_s = self._clock.monotonic()


class _NoFiles:
    """Slurm names no output files."""

    async def of(self, job_id: int) -> NamedOutputs:
        raise NotFound(f"Slurm names no files of job {job_id}.")


@asynccontextmanager
async def serving(
    folder: Path, port: int, scheduler: InMemoryScheduler, store: MetricStore
) -> AsyncIterator[TelemetryIntake]:
    """Agents are served on that port until the context ends; the authority is in the folder."""
    clock = SystemClock()
    state = InMemoryStateStore(clock)
    figures = Figures()
    log: Any = structlog.wrap_logger(
        structlog.PrintLogger(sys.stderr),
        wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR),
    )
    journal = LoggedJournal(log, figures)
    config = with_single_identity(
        ServerConfig(api=ApiSection(agent_listen=Address(HERE, port))), folder
    )
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        reach = await enter(open_reach(config, state, clock, _REPLICA))
        agents = await enter(
            open_agents(
                config,
                state,
                clock,
                replica_id=_REPLICA,
                presences=reach.presences,
                replicas=reach.addresses,
            )
        )
        assert agents is not None
        peers = Peers(agents.replica.channel_credentials, agents.replica.channel_options)
        stack.push_async_callback(peers.aclose)
        needs = TelemetryNeeds(
            scheduler=scheduler,
            state=state,
            sharing=sharing_parts(state),
            clock=clock,
            views=Vclusters(),
            figures=figures,
            journal=journal,
        )
        intake = await enter(open_telemetry(needs, config.telemetry, store))
        objects = InMemoryObjectStore(clock)
        logs = log_intake(scheduler, _NoFiles(), objects, agents.signer, clock, journal)
        rates = Rates(
            limit_table(RateLimitsSection()),
            clock,
            replica=_REPLICA,
            replicas=lambda: (_REPLICA,),
            others=NoOtherReplica(),
        )
        intakes = Intakes(logs=logs, metrics=intake.rpc)
        await enter(open_links(config, reach, agents, peers, rates, figures, log, intakes))
        yield intake


class Part:
    """Another process of a bench: what it says is JSON, one line after another."""

    def __init__(self, *words: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.last: dict[str, Any] = {}
        self._said = threading.Condition()
        self._over = False
        threading.Thread(target=self._hear, name=words[0], daemon=True).start()

    def _hear(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._said:
                self.last = json.loads(line)
                self._said.notify_all()
        with self._said:
            self._over = True
            self._said.notify_all()

    def until(self, holds: Callable[[dict[str, Any]], bool], within_s: float) -> dict[str, Any]:
        """The first it says of which this holds, or what it said last."""
        deadline = time.monotonic() + within_s
        with self._said:
            while not (self.last and holds(self.last)):
                left_s = deadline - time.monotonic()
                if self._over or left_s <= 0:
                    raise SystemExit(f"{self.process.args}: only {self.last} in {within_s:g} s")
                self._said.wait(left_s)
            return self.last

    def tell(self, word: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


def say(told: dict[str, Any]) -> None:
    print(json.dumps(told), flush=True)


def end_with_the_first() -> None:
    """A part ends when whoever started it does, however that was."""

    def wait() -> None:
        sys.stdin.read()
        os._exit(0)

    threading.Thread(target=wait, daemon=True).start()


def processor_s(pid: int) -> float:
    """What a process has used, all its threads together."""
    told = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(told[11]) + int(told[12])) / _TICKS


def program(name: str, package: str, places: Sequence[str] = ("/usr/bin",)) -> str:
    """A program of the machine's; what to do if it is not there."""
    for place in places:
        if Path(place, name).exists():
            return f"{place}/{name}"
    raise SystemExit(
        f"{name} is not installed: run scripts/setup, or "
        f"`apt-get install --no-install-recommends {package}`"
    )
