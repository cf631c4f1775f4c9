"""Slurm as the server has it: the scheduler kept in sight, its commands, and the submit gate."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict

from lattice.access.grants import GrantSigner
from lattice.adapters.helper.channel import HelperChannel
from lattice.adapters.helper.gate import HelperGate
from lattice.adapters.slurm.commands import SlurmCommands
from lattice.adapters.slurm.mirror import SlurmScheduler
from lattice.adapters.slurm.rest import SlurmRest
from lattice.base.clock import Clock
from lattice.base.errors import ConfigurationError
from lattice.base.signing import SigningKey
from lattice.base.supervisor import Loop, OnFailure, Supervisor
from lattice.domain.submission import SubmitGate
from lattice.server.figures import Figures
from lattice.server.sections import ServerConfig, SlurmSection


@asynccontextmanager
async def open_scheduler(
    config: ServerConfig, clock: Clock, figures: Figures, supervisor: Supervisor
) -> AsyncIterator[SlurmScheduler]:
    """Polled until the context ends. Raises `ConfigurationError`."""
    slurm = config.slurm
    if slurm.rest_url is None:
        raise ConfigurationError("slurm.rest_url is not set.", hint="Name slurmrestd's socket.")
    rest = SlurmRest(slurm.rest_url, user=slurm.user or "", token_file=slurm.token_file)
    scheduler = SlurmScheduler(
        config.cluster.name,
        rest,
        slurm_commands(slurm),
        config.views,
        clock,
        slurm.poll_interval_s,
    )
    figures.watch(lambda: _counts(scheduler))
    try:
        async with supervisor.running(Loop("slurm", scheduler.run, OnFailure.RESTART)):
            yield scheduler
    finally:
        await rest.aclose()


def slurm_commands(slurm: SlurmSection) -> SlurmCommands:
    """Slurm's own commands, as this site has them."""
    return SlurmCommands(
        slurm.config_file, bin_dir=slurm.bin_dir, operate_prefix=slurm.operate_with
    )


def submit_gate(config: ServerConfig, clock: Clock) -> SubmitGate | None:
    """None where nothing can be submitted or cancelled."""
    key = config.gate.grant_key or config.identity.grant_key
    if config.gate.socket is None or key is None:
        return None
    return HelperGate(HelperChannel(config.gate.socket), GrantSigner(SigningKey.load(key), clock))


def _counts(scheduler: SlurmScheduler) -> dict[str, float]:
    counts: dict[str, float] = {
        f"slurm_{name}_{count}": value
        for name, polled in (("jobs", scheduler.jobs), ("nodes", scheduler.nodes))
        for count, value in asdict(polled.counts).items()
    }
    counts["slurm_past_questions_total"] = scheduler.past_reader.questions_total
    return counts
