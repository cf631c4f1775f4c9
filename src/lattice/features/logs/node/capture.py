"""One job's output on this node: a thread that reads behind the writers and spools the text.

Everything here blocks: if a network file system hangs, only this thread hangs. Listeners get
callbacks and never delay the thread.

Text is written to disk, then listeners get it, then it is compressed. A large read is compressed
first, because its listeners send the frame.

Under load a slow listener first falls back to text on disk. Then the thread stops reading while the
node's spool or disk is full. The job itself never waits.

A thread that reads a flood without listeners lowers its priority. Lines of most jobs cost little,
and somebody may wait for them. A job that writes without end costs a tenth of a core at 1 GB a
minute. Jobs come first on that core, and the flood waits in its file. A process without privileges
can't raise its priority again, so the change lasts for the thread's life.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeAlias

from lattice.base.clock import Clock
from lattice.domain.logs import GapCause, LogKind, LogSource, Position
from lattice.features.logs.node.compressor import StartCompression, compress_now
from lattice.features.logs.node.quota import JobQuota, Overrun
from lattice.features.logs.node.spool import StreamSpool
from lattice.features.logs.node.tail import MOST_AT_ONCE, Tail
from lattice.features.logs.node.write_watcher import Noticing

FLOOD_BYTES = 64 * 1024 * 1024
WINDOW_MS = 10_000
LOWER = 10
"""For `nice`: a ninth of the share of a job's thread on the same core."""


class FloodPriority:
    """Lowers the priority of the calling thread after a flood."""

    def __init__(self, lower: Callable[[int], object] = os.nice) -> None:
        self._lower = lower
        self._since_ms = 0
        self._bytes = 0
        self.lowered = False

    def took(self, size_bytes: int, now_ms: int) -> None:
        """Count bytes that were read while there are no listeners."""
        if self.lowered:
            return
        if not 0 <= now_ms - self._since_ms < WINDOW_MS:
            self._since_ms, self._bytes = now_ms, 0
        self._bytes += size_bytes
        if self._bytes > FLOOD_BYTES:
            self.lowered = True
            self._lower(LOWER)


_log = logging.getLogger(__name__)

_ROUND_BYTES = 4 * 1024 * 1024
"""Read from one stream before the next has its turn."""


@dataclass(frozen=True, slots=True)
class Added:
    """Text that was just read from a stream."""

    kind: LogKind
    source: LogSource
    at: Position
    text: bytes
    lines: int
    """The number of line feeds in the text."""
    time_ms: int
    late: bool
    packed: Future[bytes] | None = None
    """The same text as the store will keep it, of a large read."""


Listening: TypeAlias = Callable[[Added | None], None]
"""Called in the capture's thread, so it must return at once.

None: a stream is new, has a gap or ended; read the capture's streams.
"""


class Stream:
    """One file of the job, and its spool."""

    def __init__(self, tail: Tail, spool: StreamSpool, *, late: bool) -> None:
        self.tail = tail
        self.spool = spool
        self.trouble = ""
        """Why it is not read now; empty if it is read."""
        self.overrun = Overrun.left(spool, tail)
        """Set when the job is over its quota: later text is counted and not kept."""
        self._late = late
        self._mark = spool.mark
        if self._mark != tail.mark:
            self._remember()

    def advance(
        self, now_ms: int, most: int, start: StartCompression = compress_now
    ) -> Added | None:
        """Read once and spool the text; None if there was nothing to read."""
        at = self.spool.end
        read = self.tail.read(most)
        if read.anew:
            self.spool.add_gap(GapCause.TRUNCATED, read.lost_bytes, now_ms)
            self._remember()
            return self.advance(now_ms, most, start)
        if not read.text:
            self._late = False
            self.spool.write_frame()
            return None
        if self.tail.mark != self._mark:
            self._remember()
        try:
            self.spool.add(read.text, now_ms, late=self._late, start=start)
        except OSError:
            spooled = self.spool.end.offset - at.offset
            self.tail.step_back(len(read.text) - spooled)
            raise
        head, lines = self.spool.head, self.spool.end.line - at.line
        return Added(head.kind, head.source, at, read.text, lines, now_ms, self._late)

    def close(self) -> None:
        """Close the files; their content stays."""
        self.tail.close()
        with suppress(OSError):
            # If the disk is full, the next agent makes this frame.
            self.spool.write_frame()
        self.spool.close()

    def check_truncation(self, now_ms: int) -> None:
        """Record truncations while nothing may be kept."""
        found = self.tail.check()
        if found.anew or found.lost_bytes:
            self.spool.add_gap(GapCause.TRUNCATED, found.lost_bytes, now_ms)
        if self.tail.mark != self._mark:
            self._remember()

    def pass_over(self, now_ms: int, *, end: bool = False) -> bool:
        """Over the quota: count what was written. True if that closed a chunk."""
        if self.overrun is None:
            self.overrun = Overrun(self.spool, self.tail)
        return self.overrun.check(now_ms, end=end)

    def _remember(self) -> None:
        self.spool.remember(self.tail.mark)
        self._mark = self.tail.mark


class JobCapture:
    """Call `start`, then `finish` when the job's processes are gone; `over` is then set."""

    def __init__(
        self,
        name: str,
        clock: Clock,
        room: Callable[[], bool],
        on_closed: Callable[[], None],
        quota: JobQuota | None = None,
        on_quiet: Callable[[], None] = lambda: None,
        start_compression: StartCompression = compress_now,
    ) -> None:
        """All callbacks run in the capture's thread.

        - `room`: True while the node's spools may grow.
        - `on_closed`: a chunk waits to be stored.
        - `on_quiet`: inotify watches are wanted again.
        - `start_compression`: begins to compress a frame while there are listeners.
        """
        self._start_compression = start_compression
        self._quota = quota or JobQuota()
        self._flood_priority = FloodPriority()
        self._clock = clock
        self._room = room
        self._on_closed = on_closed
        self._streams: list[Stream] = []
        self._noticing = Noticing(clock.monotonic, self._written_bytes, on_quiet)
        self._listeners: list[Listening] = []
        self._lock = threading.Lock()
        self._finishing = self._stopping = self._closed = False
        self._thread = threading.Thread(target=self._run, name=f"logs {name}", daemon=True)
        self._ended = threading.Event()

    @property
    def streams(self) -> tuple[Stream, ...]:
        """Every file that is followed."""
        with self._lock:
            return tuple(self._streams)

    @property
    def over(self) -> bool:
        """True when everything was read to the end; it stays False if the agent stops."""
        return self._ended.is_set()

    def start(self) -> None:
        self._thread.start()

    def add(self, stream: Stream) -> None:
        """Follow one more file; if the agent stops, close it."""
        with self._lock:
            if not self._closed:
                self._streams.append(stream)
                self._quota.took(stream.spool.end.offset)
                self._noticing.wake()
                return
        stream.close()

    def watch(self, descriptor: int) -> None:
        """Add an inotify instance for writes to the files; it is closed at the end."""
        self._noticing.add(descriptor)

    def watched(self) -> None:
        """All files have inotify watches again."""
        self._noticing.added_all()

    def listen(self, listener: Listening) -> None:
        with self._lock:
            self._listeners.append(listener)
        self._noticing.wake()

    def unlisten(self, listener: Listening) -> None:
        with self._lock:
            self._listeners.remove(listener)

    def finish(self) -> None:
        """The writers are gone: read to the end and close the last chunks."""
        self._finishing = True
        self._noticing.wake()

    def stop(self, timeout_s: float = 5.0) -> None:
        """End without finishing: the agent stops, the job continues."""
        self._stopping = True
        self._noticing.wake()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            while not self._stopping:
                busy = self._round()
                if self._finishing and not busy and self._finish_streams():
                    self._ended.set()
                    break
                if not busy:
                    self._noticing.wait(followed=bool(self._listeners))
        except Exception:  # noqa: BLE001 - one job's defect is not the agent's end
            _log.exception("following a job's output: not foreseen")
        finally:
            self._close()

    def _round(self) -> bool:
        """Give each stream a turn; True if one has more to read."""
        busy = False
        for stream in self.streams:
            before, stream.trouble = stream.trouble, ""
            try:
                busy |= self._turn(stream)
            except OSError as error:
                stream.trouble = error.strerror or str(error)
            if stream.trouble not in {"", before}:
                _log.warning("output of job %d: %s", stream.spool.head.job_id, stream.trouble)
        return busy

    def _turn(self, stream: Stream) -> bool:
        left = _ROUND_BYTES
        while left > 0:
            now_ms = int(self._clock.now().timestamp() * 1000)
            left_bytes = self._quota.left_bytes
            if stream.overrun or (not left_bytes and stream.tail.behind_bytes):
                self._pass_over(stream, now_ms)
                return False
            if not self._room():
                stream.check_truncation(now_ms)
                stream.trouble = "the spool is full"
                return False
            gaps = len(stream.spool.gaps())
            # Without listeners this thread compresses: it may run at a lower priority.
            start = self._start_compression if self._listeners else compress_now
            added = stream.advance(now_ms, min(MOST_AT_ONCE, left_bytes), start)
            if len(stream.spool.gaps()) != gaps:
                # Report the gap before the text after it.
                self._notify(None)
            if added is None:
                if stream.spool.close_if_due(now_ms):
                    self._on_closed()
                return False
            left -= len(added.text)
            self._quota.took(len(added.text))
            if not self._listeners:
                self._flood_priority.took(len(added.text), now_ms)
            packed = stream.spool.start_full_frame(start)
            self._notify(added if packed is None else replace(added, packed=packed))
            if stream.spool.close_if_due(now_ms):
                self._on_closed()
        return True

    def _pass_over(self, stream: Stream, now_ms: int, *, end: bool = False) -> None:
        if stream.pass_over(now_ms, end=end):
            self._on_closed()
            self._notify(None)

    def _finish_streams(self) -> bool:
        """Close the last chunks; False if one can't be closed yet."""
        for stream in self.streams:
            if (stream.tail.behind_bytes and not stream.overrun) or stream.trouble:
                return False
            try:
                if stream.overrun:
                    now_ms = int(self._clock.now().timestamp() * 1000)
                    self._pass_over(stream, now_ms, end=True)
                stream.spool.close_chunk(last=True)
            except OSError as error:
                stream.trouble = error.strerror or str(error)
                return False
        self._on_closed()
        return True

    def _written_bytes(self) -> int:
        """Bytes that the job wrote, read or not."""
        return sum(each.tail.offset + each.tail.behind_bytes for each in self.streams)

    def _notify(self, added: Added | None) -> None:
        with self._lock:
            listeners = tuple(self._listeners)
        for listener in listeners:
            listener(added)

    def _close(self) -> None:
        self._notify(None)
        with self._lock:
            self._closed = True
        for stream in self._streams:
            stream.close()
        self._noticing.close()
