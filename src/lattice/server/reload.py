"""What a reload of the configuration changes in the parts of a server that are no feature."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from lattice.access.actor import ClaimNames
from lattice.base.loglines import set_level
from lattice.base.logsection import LogSection
from lattice.base.reload import Reload
from lattice.server.config.api_section import ApiSection
from lattice.server.config.engine_sections import TelemetrySection
from lattice.server.config.sections import NodeAgentSection, SlurmSection, VclusterEntry
from lattice.server.foundation import Ground
from lattice.server.listeners.gatekeeper import Gatekeeper


def server_reloads(ground: Ground, gatekeeper: Gatekeeper | None) -> Iterator[Reload]:
    """The parts, each with its section."""
    yield Reload("log", _level)
    yield Reload("api", lambda api: _sign_in(ground, gatekeeper, api))
    yield Reload("slurm", lambda slurm: _slurm(ground, slurm))
    yield Reload("vclusters", lambda entries: _views(ground, entries))
    yield Reload("rate_limits", ground.cluster.limits.reload)
    yield Reload("node_agent", lambda agents: _times(ground, agents))
    yield Reload("telemetry", lambda telemetry: _modes(ground, telemetry))


def _level(section: LogSection) -> None:
    set_level(section.level)


def _sign_in(ground: Ground, gatekeeper: Gatekeeper | None, api: ApiSection) -> None:
    if gatekeeper is not None:
        # The name of the user's claim is part of tokens, so it stays.
        names = api.claim_names
        gatekeeper.names = ClaimNames(gatekeeper.names.user, names.tenant, names.service_accounts)
    if ground.own_tokens is not None:
        ground.own_tokens.administrators = frozenset(api.administrators)
        ground.own_tokens.lifetime = timedelta(hours=api.munge_hours)


def _slurm(ground: Ground, slurm: SlurmSection) -> None:
    ground.scheduler.reload(slurm.poll_interval_s)


async def _views(ground: Ground, _entries: tuple[VclusterEntry, ...]) -> None:
    ground.foundation.views.views = ground.config.views.views
    await ground.scheduler.reload_views()


def _times(ground: Ground, agents: NodeAgentSection) -> None:
    ground.cluster.view.presences.times = agents.times


def _modes(ground: Ground, telemetry: TelemetrySection) -> None:
    if ground.agents is not None:
        ground.agents.measurement.modes.reload(telemetry.mode, telemetry.debug_most)
