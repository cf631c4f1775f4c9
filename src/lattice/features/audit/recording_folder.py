"""Checks recordings in a folder, a copy of the sensitive bucket, against lines of a bundle.

Nothing but the copy and the bundle is needed: no server and no key.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from lattice.domain.objects import BadKeyPart
from lattice.domain.recording import (
    LARGEST_CHUNK_BYTES,
    BadRecording,
    verify,
)
from lattice.domain.recording_path import RecordingPath, chunk_number
from lattice.domain.recording_proof import (
    RecordedSession,
    RecordingLedger,
    entries_about_recordings,
    recorded_session,
    recording_removal,
)


class FolderCheck:
    """Give it the lines of a bundle in order."""

    def __init__(self, folder: Path, ledger: RecordingLedger) -> None:
        self._folder = folder
        self._ledger = ledger

    def take(self, line: bytes) -> None:
        """Check the recording that this line names, if it names one."""
        for entry in entries_about_recordings((line,)):
            recorded = recorded_session(entry)
            removal = recording_removal(entry)
            if recorded is not None:
                self._check(recorded)
            elif removal is not None:
                self._ledger.remove(removal)

    def _check(self, recorded: RecordedSession) -> None:
        try:
            verify(recorded.name, self._chunks(recorded.path), recorded.anchor)
            self._ledger.add(recorded, None)
        except BadRecording as problem:
            self._ledger.add(recorded, problem)
        except (OSError, BadKeyPart) as problem:
            self._ledger.add_unchecked(f"a file of the copy can't be read: {problem}")

    def _chunks(self, path: RecordingPath) -> Iterator[tuple[int, bytes]]:
        folder = self._folder / path.prefix
        names = sorted(each.name for each in folder.iterdir()) if folder.is_dir() else []
        for name in names:
            number = chunk_number(name)
            if number is None:
                continue
            with (folder / name).open("rb") as file:
                chunk = file.read(LARGEST_CHUNK_BYTES + 1)
            if len(chunk) > LARGEST_CHUNK_BYTES:
                raise BadRecording(number, "it is too large for a chunk")
            yield number, chunk
