"""The threads of `impatience`, their work, and the keys for which they hang."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

_REST_S, _LONGEST_REST_S = 1.0, 60.0
_FORGET_S = 600.0
"""After so long without a hang a key counts as new."""
_MOST_IDLE = 2

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class LeftBehind(Exception):
    """Raised in an abandoned thread so that it ends."""


@dataclass(frozen=True, slots=True)
class Stuck:
    """Nothing was read of a key. `pids` are the processes that block a thread now, if any."""

    pids: frozenset[int] = frozenset()


class ThreadProgress:
    """The progress of a thread on one key. The thread writes all of it except `left`."""

    __slots__ = ("at", "count", "left", "skip")

    def __init__(self, skip: frozenset[int] = frozenset()) -> None:
        self.skip = skip
        """Processes that block another thread and must not be read."""
        self.at = 0
        self.count = 0
        self.left = False

    def reads(self, pid: int) -> None:
        """Call it before reading anything of this process. Raises `LeftBehind`."""
        if self.left:
            raise LeftBehind
        self.at = pid
        self.count += 1


Read: TypeAlias = Callable[[K, ThreadProgress], T]


class Round(Generic[K, T]):
    """Keys that one thread reads one after another."""

    __slots__ = ("cut", "error", "finished", "found", "key", "keys", "progress", "read", "wake")

    def __init__(self, keys: Sequence[K], read: Read[K, T], wake: Callable[[], None]) -> None:
        self.keys = keys
        self.read = read
        self.wake = wake
        self.found: dict[K, T] = {}
        self.error: Exception | None = None
        self.key: K | None = None
        self.progress: ThreadProgress | None = None
        self.cut = False
        """True: begin no further key."""
        self.finished = False


class ImpatientWorker:
    """A thread and its queue."""

    __slots__ = ("rounds", "thread")

    def __init__(self, name: str, work: Callable[[ImpatientWorker], None]) -> None:
        self.rounds: queue.SimpleQueue[Round[Any, Any] | None] = queue.SimpleQueue()
        # A daemon, because a thread that the kernel blocks must not keep the process from exiting.
        self.thread = threading.Thread(target=work, args=(self,), name=name, daemon=True)
        self.thread.start()

    def waits_for_processor(self) -> bool:
        """True if it only waits for a processor, which is not a hang."""
        try:
            with open(f"/proc/self/task/{self.thread.native_id}/stat", "rb") as file:  # noqa: PTH123
                return file.read(512).rpartition(b")")[2].split()[0] == b"R"
        except (OSError, IndexError):
            return False


class Threads(Generic[K]):
    """The threads of one reader, and the keys for which they hang. Callers hold its lock."""

    def __init__(
        self, name: str, most_a_key: int, most: int, monotonic: Callable[[], float]
    ) -> None:
        self.lock = threading.Lock()
        self.monotonic = monotonic
        self.cpu_s = 0.0
        self._name = name
        self._most_a_key = most_a_key
        self._most = most
        self._idle: list[ImpatientWorker] = []
        self._left: dict[K, list[ThreadProgress]] = {}
        self._hangs: dict[K, tuple[int, float]] = {}
        """How often a key has hung, and when it last did."""
        self._closed = False

    @property
    def hanging(self) -> int:
        return sum(map(len, self._left.values()))

    @property
    def full(self) -> bool:
        """True if no key may get a thread."""
        return self.hanging >= self._most

    def pids(self, key: K) -> frozenset[int]:
        return frozenset(each.at for each in self._left.get(key, ()))

    def has_hung(self, key: K) -> bool:
        return key in self._hangs

    def refuses(self, key: K) -> bool:
        """True if this key may not get a thread now."""
        if self.full or len(self._left.get(key, ())) >= self._most_a_key:
            return True
        count, last_s = self._hangs.get(key, (0, 0.0))
        rest_s = min(_LONGEST_REST_S, _REST_S * 2 ** min(count, 10) / 2)
        return count > 0 and self.monotonic() - last_s < rest_s

    def leave(self, key: K, progress: ThreadProgress) -> None:
        """Abandon the thread that works on the key."""
        progress.left = True
        self._left.setdefault(key, []).append(progress)

    def note_hang(self, key: K) -> None:
        now = self.monotonic()
        self._hangs = {k: each for k, each in self._hangs.items() if now - each[1] < _FORGET_S}
        self._hangs[key] = self._hangs.get(key, (0, 0.0))[0] + 1, now

    def begin(self, turn: Round[K, Any]) -> ImpatientWorker:
        worker = self._idle.pop() if self._idle else ImpatientWorker(self._name, self._work)
        worker.rounds.put(turn)
        return worker

    def close(self) -> None:
        with self.lock:
            self._closed = True
            while self._idle:
                self._idle.pop().rounds.put(None)

    # The methods below run in a thread.

    def _work(self, worker: ImpatientWorker) -> None:
        while (turn := worker.rounds.get()) is not None:
            begun_s = time.thread_time()
            if not self._serve(turn):
                return
            with self.lock:
                self.cpu_s += time.thread_time() - begun_s
                stays = not self._closed and len(self._idle) < _MOST_IDLE
                if stays:
                    self._idle.append(worker)
                turn.finished = True
            turn.wake()
            if not stays:
                return

    def _serve(self, turn: Round[K, Any]) -> bool:
        """False if the thread was abandoned meanwhile."""
        for key in turn.keys:
            with self.lock:
                if turn.cut:
                    return True
                progress = ThreadProgress(self.pids(key))
                turn.key, turn.progress = key, progress
            found, error = None, None
            try:
                found = turn.read(key, progress)
            except Exception as raised:  # noqa: BLE001 - raised again in the caller
                error = raised
            with self.lock:
                if progress.left:
                    self._come_back(key, progress)
                    return False
                turn.key = turn.progress = None
                turn.error = error
                if error is not None:
                    return True
                turn.found[key] = found
        return True

    def _come_back(self, key: K, progress: ThreadProgress) -> None:
        left = self._left[key]
        left.remove(progress)
        if not left:
            del self._left[key]
