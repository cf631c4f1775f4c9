"""The server's part of diagnoses, put together: rules, targets, and who is asked."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points

import structlog
from grpc import aio

from lattice.access.actor import Actor
from lattice.access.finding import AllocationFinder
from lattice.access.limits import CallerLimits
from lattice.access.output import OutputDoor
from lattice.base.clock import Clock
from lattice.domain.factfinding import FactFinding, StackTaking
from lattice.domain.scheduler import Scheduler
from lattice.features.diag import http
from lattice.features.diag.model import Area, LinkTarget, MountTarget, Rule, Targets
from lattice.features.diag.rpc import DiagnosticsRpc
from lattice.features.diag.rules.known import known_rules
from lattice.features.diag.service.diagnosing import DiagService
from lattice.features.diag.service.gathering import Gathering, Senses
from lattice.server.diagsection import DiagSection
from lattice.server.sharing import SharingParts
from lattice.server.telemetry import TelemetryParts
from lattice.wire.guard import GuardedRoutes
from lattice.wire.v1.diag_pb2_grpc import add_DiagnosticsServiceServicer_to_server

RULES = "lattice.diag_rules"
"""The entry points by which a site adds rules: each names a class without arguments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagNeeds:
    """What diagnoses stand on."""

    scheduler: Scheduler
    telemetry: TelemetryParts
    facts: FactFinding | None
    """None: nodes can't be asked for facts."""
    stacks: StackTaking | None
    sharing: SharingParts
    clock: Clock
    limits: CallerLimits | None = None


def diag_service(
    needs: DiagNeeds, section: DiagSection, log: structlog.stdlib.BoundLogger | None = None
) -> DiagService:
    """What both faces are given."""
    finder = AllocationFinder(needs.scheduler, needs.clock, needs.sharing.shares)
    senses = Senses(
        facts=needs.facts,
        store=needs.telemetry.store,
        modes=needs.telemetry.modes,
    )
    return DiagService(
        needs.scheduler,
        finder,
        OutputDoor(finder, needs.sharing.notes, needs.clock),
        Gathering(senses, needs.clock, targets_of(section)),
        rules_of(section, entry_points(group=RULES), log),
        needs.stacks,
        needs.clock,
        needs.limits,
    )


def targets_of(section: DiagSection) -> Targets:
    """The configuration's numbers."""
    return Targets(
        mounts=tuple(
            MountTarget(
                path=each.path,
                read_bytes_s=_times(each.read_mb_s, 1e6),
                write_bytes_s=_times(each.write_mb_s, 1e6),
                answers_s=_times(each.answers_ms, 1e-3),
            )
            for each in section.mounts
        ),
        links=tuple(
            LinkTarget(name=each.name, speed_bits=each.gbit_s * 1e9) for each in section.links
        ),
        gpu_idle_percent=section.gpu_idle_percent,
        hang_s=section.hang_s,
        straggler_percent=section.straggler_percent,
        loader_gpu_percent=section.loader_gpu_percent,
        memory_percent=section.memory_percent,
        link_error_percent=section.link_error_percent,
        retransmit_percent=section.retransmit_percent,
        congestion_percent=section.congestion_percent,
        mount_answers_s=section.mount_answers_s,
        io_p99_s=section.io_p99_s,
        clock_s=section.clock_s,
        quiet_s=section.quiet_s,
    )


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def rules_of(
    section: DiagSection,
    added: Iterable[EntryPoint],
    log: structlog.stdlib.BoundLogger | None = None,
) -> tuple[Rule, ...]:
    """Those that Lattice brings, then the site's; one that can't be loaded is left out, loudly."""
    rules = {each.name: each for each in known_rules()}
    for entry in added:
        try:
            made = _made(entry)
        except Exception as error:  # noqa: BLE001 - whatever a site's module does
            if log is not None:
                log.warning("a rule can't be loaded", rule=entry.name, error=repr(error))
        else:
            rules[made.name] = made
    return tuple(rule for name, rule in rules.items() if name not in section.without)


def _made(entry: EntryPoint) -> Rule:
    """Raises whatever is wrong with it: a page needs every part."""
    made: Rule = entry.load()()
    frozenset(made.explains)
    if not (made.name and made.title and Area(made.area) and callable(made.judge)):
        raise TypeError(f"{entry.value} is no rule")
    return made


def offer_diag(service: DiagService | None, routes: GuardedRoutes[Actor]) -> None:
    """Over HTTP, where agents are served."""
    if service is not None:
        http.offer(routes, service)


def serve_diag(service: DiagService | None, server: aio.Server) -> None:
    """Over gRPC."""
    if service is not None:
        add_DiagnosticsServiceServicer_to_server(DiagnosticsRpc(service), server)
