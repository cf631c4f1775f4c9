"""Wires the feature: its services, the loop that removes old records, the terminal."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from grpc import aio

from lattice.access.actor import Actor
from lattice.base.operation import AnyBinding
from lattice.base.supervisor import Loop, OnFailure
from lattice.domain.audit import AuditEntries
from lattice.domain.session_span import SessionSpan, SessionSpans
from lattice.features.attach import wire as own_wire
from lattice.features.attach.operations import (
    ISSUE_ATTACH_TICKET,
    LIST_ATTACH_SESSIONS,
    READ_RECORDING,
)
from lattice.features.attach.section import AttachSection
from lattice.features.attach.service.questions import HelperQuestions
from lattice.features.attach.service.recorded import TerminalRecording
from lattice.features.attach.service.recording_closer import RecordingCloser
from lattice.features.attach.service.recording_retention import RecordingRetention
from lattice.features.attach.service.recordings import Recordings
from lattice.features.attach.service.records import AttachListing, RecordCleanup, SessionRecords
from lattice.features.attach.service.registry import SessionRegistry
from lattice.features.attach.service.replay import Replay
from lattice.features.attach.service.session import AttachService
from lattice.features.attach.service.tickets import AttachTickets
from lattice.features.attach.wire import RPC, AttachRpc
from lattice.foundation.foundation import Foundation, NodeAccess
from lattice.foundation.recording_store import RecordingStore
from lattice.foundation.wiring import Wiring
from lattice.wire.guard import GuardedRoutes


def bindings(
    listing: AttachListing, tickets: AttachTickets, replay: Replay
) -> tuple[AnyBinding, ...]:
    return (
        READ_RECORDING.to(lambda actor, asked: replay.read(actor, asked.session, asked.begin)),
        ISSUE_ATTACH_TICKET.to(lambda actor, asked: tickets.issue(actor, asked.id)),
        LIST_ATTACH_SESSIONS.to(
            lambda actor, asked: listing.of(actor, name=asked.id, only_open=asked.open)
        ),
    )


def recording_retention(foundation: Foundation) -> RecordingRetention | None:
    """What removes recordings; None without a bucket of sensitive work."""
    objects = foundation.sensitive_objects
    if objects is None:
        return None
    retention = RecordingRetention(
        Recordings(foundation.state),
        RecordingStore(objects),
        foundation.audit,
        foundation.clock,
    )
    foundation.own_metrics.watch(
        lambda: {"recordings_removed_total": float(retention.removed_total)}
    )
    return retention


def session_spans(foundation: Foundation) -> SessionSpans:
    """Reads the records of terminals for other features."""
    records = SessionRecords(foundation.state, foundation.clock, foundation.replica)

    async def spans(user: str, allocation: str) -> tuple[SessionSpan, ...]:
        sessions, _ = await records.of(user, allocation=allocation, only_open=False)
        return tuple(
            SessionSpan(
                node=each.node,
                command=" ".join(each.command),
                started=each.started,
                ended=each.ended,
            )
            for each in sessions
        )

    return spans


def wire(
    foundation: Foundation, nodes: NodeAccess, section: AttachSection, entries: AuditEntries
) -> Wiring:
    """`entries` reads the entries of the audit log that name recordings."""
    clock, replica = foundation.clock, foundation.replica
    retention = timedelta(days=section.record_days)
    records = SessionRecords(foundation.state, clock, replica, retention)
    finder = foundation.finder
    recording, closer = _recording(foundation, nodes, records)
    keeping = SessionRegistry(
        foundation.limits,
        records,
        clock,
        foundation.journal,
        foundation.sensitive_acts,
        locks=foundation.locks,
        on_recorded_end=closer.close_soon if closer is not None else lambda: None,
    )
    asking = HelperQuestions(nodes.signer, uncontained=section.uncontained)
    service = AttachService(
        foundation.scheduler,
        finder,
        nodes.streams,
        asking,
        keeping,
        recording,
        clock,
        replica,
    )
    foundation.own_metrics.show(lambda: {"attach_connections": float(service.open)})
    tickets = AttachTickets(finder, foundation.signed_state, clock)
    tidying = RecordCleanup(records, clock, foundation.replicas)
    loops = [Loop("attach records", tidying.run, OnFailure.RESTART)]
    foundation.own_metrics.watch(
        lambda: {
            "recordings_closed_total": float(closer.closed_total if closer else 0),
            "recordings_failures_total": float(closer.failures_total if closer else 0),
        }
    )
    if closer is not None:
        loops.append(Loop("recordings", closer.run, OnFailure.RESTART))
    return Wiring(
        bindings=bindings(AttachListing(finder, records), tickets, _replay(foundation, entries)),
        offer=terminal(service, tickets, frozenset(section.origins)),
        loops=tuple(loops),
        close=keeping.aclose,
    )


def _recording(
    foundation: Foundation, nodes: NodeAccess, records: SessionRecords
) -> tuple[TerminalRecording, RecordingCloser | None]:
    """Without a bucket of sensitive work, or without data keys, nothing can be recorded."""
    objects, keys, clock = foundation.sensitive_objects, foundation.data_keys, foundation.clock
    recordings = Recordings(foundation.state)
    if objects is None or keys is None:
        return TerminalRecording(foundation.sensitive, recordings, clock), None
    store = RecordingStore(objects)
    closer = RecordingCloser(
        recordings,
        records,
        store,
        keys.existing,
        nodes.streams,
        nodes.signer,
        foundation.audit,
        clock,
    )
    return TerminalRecording(foundation.sensitive, recordings, clock, store, keys), closer


def _replay(foundation: Foundation, entries: AuditEntries) -> Replay:
    objects, keys = foundation.sensitive_objects, foundation.data_keys
    needed = (foundation.output, Recordings(foundation.state), foundation.audit, entries)
    if objects is None or keys is None:
        return Replay(*needed)
    return Replay(*needed, RecordingStore(objects), keys.existing)


def terminal(
    service: AttachService, tickets: AttachTickets, origins: frozenset[str]
) -> Callable[[GuardedRoutes[Actor], aio.Server], None]:
    """Adds the terminal to both listeners. `origins`: pages that may open one."""

    def offer(routes: GuardedRoutes[Actor], server: aio.Server) -> None:
        own_wire.offer(routes, service, tickets, origins)
        rpc = AttachRpc(service, routes.authorised(RPC))
        server.add_generic_rpc_handlers((rpc.handlers(),))

    return offer
