"""Recordings that are over: their chunks, and the event that names each in the audit log."""

from __future__ import annotations

from dataclasses import dataclass

from lattice.domain.asciicast import CastEvent, CastHeader, CastKind
from lattice.domain.audit import AuditAct, AuditEvent
from lattice.domain.recording import (
    Anchor,
    ChunkText,
    RecordingName,
    anchor_text,
    first_position,
    write_chunk,
)
from lattice.domain.recording_path import RecordingPath
from lattice.domain.recording_proof import end_event, removal_event, removal_text
from lattice.domain.sealed import DataKey

KEY = DataKey(b"k" * 16, b"s" * 32)
HEADER = CastHeader(columns=80, rows=24, terminal="xterm", timestamp=1_772_366_400, command="sh")


@dataclass(frozen=True, slots=True)
class FinishedRecording:
    """A recording of alice's, with all that is stored of it."""

    path: RecordingPath
    chunks: tuple[bytes, ...]
    anchor: Anchor

    @property
    def keys(self) -> list[str]:
        return [self.path.key(number) for number in range(len(self.chunks))]

    @property
    def end(self) -> AuditEvent:
        """What names it."""
        name = self.path.name
        return AuditEvent(
            event=end_event(name),
            act=AuditAct.ATTACH_END,
            user="alice",
            tenant=self.path.tenant,
            allocation=name.allocation,
            owner="alice",
            of_tenant=self.path.tenant,
            node="n1",
            target=name.cluster,
            detail=anchor_text(name.session, self.anchor, "exited", account=self.path.account),
        )

    def removal(self, days: int) -> AuditEvent:
        """What says that it was removed after so many days."""
        name = self.path.name
        return AuditEvent(
            event=removal_event(name),
            act=AuditAct.RECORDING_REMOVED,
            allocation=name.allocation,
            owner="alice",
            of_tenant=self.path.tenant,
            target=name.cluster,
            detail=removal_text(name.session, days),
        )


def finished_recording(
    number: int, chunks: int = 5, *, tenant: str = "physics", session: str = ""
) -> FinishedRecording:
    """The recording of the job with this number."""
    name = RecordingName("c0ffee", f"{number}@1772366400", session or f"{number:032x}")
    position, made = first_position(name), []
    for at in range(chunks):
        events = (CastEvent(at * 1000, CastKind.OUTPUT, f"line {at}\n".encode()),)
        text = ChunkText(position.totals, events, None if at else HEADER)
        chunk, position = write_chunk(KEY, name, position, text, last=at == chunks - 1)
        made.append(chunk.data)
    path = RecordingPath(name=name, tenant=tenant, account="theory")
    return FinishedRecording(path, tuple(made), Anchor(chunks, position.before))
