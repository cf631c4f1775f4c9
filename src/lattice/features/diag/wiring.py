"""Wires the feature: its rules, its service and its operations."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points

import structlog

from lattice.base.operation import AnyBinding
from lattice.base.reload import Reload
from lattice.domain.node_snapshot import FactSource, StackSource
from lattice.features.diag.model import (
    Area,
    DiagRule,
    LinkTarget,
    MountTarget,
    Targets,
    areas_named,
)
from lattice.features.diag.operations import GET_DIAGNOSTICS, GET_STACKS, PAGES
from lattice.features.diag.rules.engine import known_rules
from lattice.features.diag.section import DiagSection
from lattice.features.diag.service.case_builder import CaseBuilder, DataSources
from lattice.features.diag.service.diagnoses import DiagService
from lattice.foundation.foundation import Foundation, NodeAccess
from lattice.foundation.wiring import Wiring


def bindings(service: DiagService) -> tuple[AnyBinding, ...]:
    return (
        GET_DIAGNOSTICS.to(
            lambda actor, asked: service.diagnose(actor, asked.id, areas_named(asked.areas))
        ),
        *(_page(service, area) for area in PAGES),
        GET_STACKS.to(lambda actor, asked: service.stacks(actor, asked.id)),
    )


def _page(service: DiagService, area: Area) -> AnyBinding:
    return PAGES[area].to(lambda actor, asked: service.diagnose(actor, asked.id, (area,)))


RULES = "lattice.diag_rules"
"""The entry points by which a site adds rules: each names a class without arguments."""


def wire(
    foundation: Foundation,
    nodes: NodeAccess,
    section: DiagSection,
    facts: FactSource,
    stacks: StackSource,
) -> Wiring:
    """Return the feature's part of the server."""
    senses = DataSources(
        facts=facts,
        store=foundation.metrics,
        modes=nodes.modes,
        presences=foundation.presences,
    )
    builder = CaseBuilder(senses, foundation.clock, targets_of(section))
    service = DiagService(
        foundation.scheduler,
        foundation.finder,
        foundation.measurements,
        builder,
        rules_of(section, entry_points(group=RULES), foundation.log),
        stacks,
        foundation.clock,
        foundation.limits,
    )

    def reload(section: DiagSection) -> None:
        builder.targets = targets_of(section)
        service.rules = rules_of(section, entry_points(group=RULES), foundation.log)

    return Wiring(bindings=bindings(service), reloads=(Reload("diag", reload),))


def targets_of(section: DiagSection) -> Targets:
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
        network_error_percent=section.link_error_percent,
        retransmit_percent=section.retransmit_percent,
        congestion_percent=section.congestion_percent,
        mount_answers_s=section.mount_answers_s,
        io_fault_p99_s=section.io_p99_s,
        clock_s=section.clock_s,
        quiet_s=section.quiet_s,
    )


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def rules_of(
    section: DiagSection,
    added: Iterable[EntryPoint],
    log: structlog.stdlib.BoundLogger | None = None,
) -> tuple[DiagRule, ...]:
    """Return the built-in rules, then the site's; one that fails to load is skipped and logged."""
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


def _made(entry: EntryPoint) -> DiagRule:
    """Load a rule. Raises if a part is missing."""
    made: DiagRule = entry.load()()
    frozenset(made.explains)
    if not (made.name and made.title and Area(made.area) and callable(made.judge)):
        raise TypeError(f"{entry.value} is no rule")
    return made
