"""The checks of the server itself: its process, its disks, its gate, the other servers. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from lattice.base.moment import age
from lattice.base.reload import ReloadOutcome
from lattice.features.doctor.model import Check, Topic
from lattice.features.doctor.service.disks import room
from lattice.features.doctor.service.facts import FolderFacts, ProcessFacts, ReplicaFacts
from lattice.features.doctor.service.measured import Inspected, milliseconds

_PAUSE_S, _LONG_PAUSE_S = 1.0, 5.0
"""A person at a terminal notices the first. At the second, peers are about to give up."""
_RECENT_S = 3600.0
_MOST_FILES_SHARE = 0.8

EVENT_LOOP = Topic("server.event_loop", "the event loop does not stall")
LOOPS = Topic("server.loops", "background loops run without failure")
CONFIGURATION = Topic("server.configuration", "the server runs with its configuration file")
FILES = Topic("server.files", "open files are below the limit")
STATE_DISK = Topic("server.state_disk", "the state folder has room")
LOG_DISK = Topic("server.log_disk", "the log has room")
REPLICAS = Topic("server.replicas", "the servers reach each other")
VERSIONS = Topic("server.versions", "the servers have one version")
GATE = Topic("server.gate", "the submit gate answers and knows the key")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    process: ProcessFacts
    state_disk: Inspected[FolderFacts]
    log_disk: Inspected[FolderFacts]
    replicas: Inspected[tuple[ReplicaFacts, ...]]
    gate: Inspected[bool]
    single: bool
    version: str
    """Of this server."""


def server_checks(facts: ServerFacts) -> Iterator[Check]:
    yield event_loop(facts.process)
    yield loops(facts.process)
    yield files(facts.process)
    yield configuration(facts.process.reload)
    yield room(STATE_DISK, facts.state_disk, "the state folder")
    yield room(LOG_DISK, facts.log_disk, "the system's log")
    yield replicas(facts)
    yield versions(facts)
    yield gate(facts.gate)


def event_loop(process: ProcessFacts) -> Check:
    pause_s = process.longest_pause_s
    if pause_s is None:
        return EVENT_LOOP.unknown("pauses are not measured in this process")
    evidence = f"longest turn of the last minutes: {milliseconds(pause_s)}"
    if pause_s < _PAUSE_S:
        return EVENT_LOOP.ok(evidence)
    remedy = "Give the server's host more processors, or a second server, and look at its load."
    return (EVENT_LOOP.failed if pause_s >= _LONG_PAUSE_S else EVENT_LOOP.warning)(evidence, remedy)


def loops(process: ProcessFacts) -> Check:
    total = sum(process.failures.values())
    recent = sorted(
        (ago_s, name) for name, ago_s in process.failed_s_ago.items() if ago_s <= _RECENT_S
    )
    if recent:
        named = "; ".join(
            f"{name}: {process.failures.get(name, 1)} since the start, the last {age(ago_s)} ago"
            for ago_s, name in recent
        )
        return LOOPS.warning(named, "Report the traceback in the server's log (`background loop`).")
    evidence = f"{len(process.failures)} loops, {total} failures since the start"
    return LOOPS.ok(evidence + (", none in the last hour" if total else ""))


def configuration(reload: ReloadOutcome | None) -> Check:
    if reload is None:
        return CONFIGURATION.ok("read at the start, and not reloaded since")
    at = f"{reload.at:%Y-%m-%d %H:%M:%S} UTC"
    if reload.problems:
        more = len(reload.problems) - 1
        rest = f" (and {more} more)" if more else ""
        return CONFIGURATION.failed(
            f"the file was refused at {at}, and the old values hold: {reload.problems[0]}{rest}",
            "Correct it (lattice-server --check-config lists all problems), then: systemctl reload "
            "lattice-server",
        )
    if reload.waiting:
        return CONFIGURATION.warning(
            f"changed, but needs a restart: {', '.join(reload.waiting)}",
            "Restart the server, one replica after the other: systemctl restart lattice-server",
        )
    return CONFIGURATION.ok(f"reloaded at {at}")


def files(process: ProcessFacts) -> Check:
    evidence = f"{process.open_files} of {process.most_files}"
    if process.open_files > _MOST_FILES_SHARE * process.most_files:
        return FILES.warning(evidence, "Raise LimitNOFILE in the unit of lattice-server.")
    return FILES.ok(evidence)


def replicas(facts: ServerFacts) -> Check:
    if facts.single:
        return REPLICAS.off("one server alone (--single): no high availability")
    found = facts.replicas
    if found.off:
        return REPLICAS.off(found.off)
    if found.value is None:
        return REPLICAS.unknown(found.reason)
    away = [each for each in found.value if each.reason]
    if away:
        named = "; ".join(f"{each.id}: {each.reason}" for each in away)
        return REPLICAS.failed(
            f"{len(away)} of {len(found.value)} others: {named}",
            "Open the port of api.agent_listen between the servers, and start those that are down.",
        )
    if not found.value:
        return REPLICAS.warning(
            "no other server is up",
            "Start a second server, so that the loss of one goes unnoticed.",
        )
    return REPLICAS.ok(f"{len(found.value)} other{'s' if len(found.value) > 1 else ''} answer")


def versions(facts: ServerFacts) -> Check:
    if facts.single:
        return VERSIONS.off("one server alone (--single)")
    found = facts.replicas
    if found.off:
        return VERSIONS.off(found.off)
    if found.value is None:
        return VERSIONS.unknown(found.reason)
    others = [each for each in found.value if each.version != facts.version]
    if others:
        named = "; ".join(f"{each.id}: {each.version or 'older'}" for each in others)
        return VERSIONS.warning(
            f"this server {facts.version}; {named}",
            "Finish the upgrade, or roll it back: servers of two releases work together, but "
            "are meant to do so for the time of an upgrade only.",
        )
    return VERSIONS.ok(facts.version)


def gate(found: Inspected[bool]) -> Check:
    if found.off:
        return GATE.off(
            "no gate is configured (gate.socket): nothing can be submitted or cancelled"
        )
    if found.value is None:
        return GATE.failed(
            found.reason,
            "On the server's host: systemctl restart lattice-gate, and put the public half of "
            "the grant key into its file of keys.",
        )
    if not found.value:
        return GATE.failed(
            "the gate would act for a user that does not exist",
            "Stop lattice-gate and check that it is the one of this release.",
        )
    return GATE.ok(f"answered in {milliseconds(found.took_s)}; it refuses a user without account")
