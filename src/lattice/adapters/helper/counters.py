"""The port `CounterLine`: a long-lived conversation with the root helper, for threads of probes.

It is synchronous: one request at a time, each with a timeout. After an invalid or late answer the
connection is closed. So a late answer is never taken for the answer to another request. A
connection that has merely ended (a conversation lasts an hour) is reopened at once. After a failure
there is no retry for 5 s, and requests fail with the same reason.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from lattice.base import packet
from lattice.base.clock import Clock
from lattice.base.text import inert
from lattice.domain.counters import (
    MOST_JOBS,
    MOST_PACKETS,
    BadTelling,
    CounterAnswer,
    CounterQuestion,
    CountersUnavailable,
    read_telling,
)
from lattice.domain.privileged import (
    BadQuestion,
    Outcome,
    WatchCounters,
    read_answer,
    write_request,
)

_TIMEOUT_S = 1.5
"""Less than the 2 s that a probe has, so that the reason is reported."""
_REST_S = 5.0
_LONGEST_TEXT = 200
NOT_THERE = "lattice-helper is not there"
_SILENT = "lattice-helper did not answer in time"


class _Ended(Exception):
    """The other end has closed the connection."""


class HelperCounterLine:
    """Reaches one helper. Thread-safe; threads wait for each other."""

    def __init__(self, path: Path, clock: Clock, *, timeout_s: float = _TIMEOUT_S) -> None:
        self._path = path
        self._clock = clock
        self._timeout_s = timeout_s
        self._turn = threading.Lock()
        self._connection: socket.socket | None = None
        self._failed: CountersUnavailable | None = None
        self._again_s = 0.0

    def ask(self, want: Sequence[str], jobs: Sequence[int]) -> CounterAnswer:
        """The counters of each kind. Raises `CountersUnavailable`."""
        until = time.monotonic() + self._timeout_s
        if not self._turn.acquire(timeout=self._timeout_s):
            raise CountersUnavailable(_SILENT)
        try:
            answer = CounterAnswer()
            for begin in range(0, len(jobs), MOST_JOBS):
                part = tuple(jobs[begin : begin + MOST_JOBS])
                _add(answer, self._asked(CounterQuestion(tuple(want), part), until))
        except CountersUnavailable as error:
            self._give_up(error)
            raise
        finally:
            self._turn.release()
        return answer

    def close(self) -> None:
        """Close the connection; the helper's child ends with it."""
        with self._turn:
            self._drop()

    def _asked(self, asking: CounterQuestion, until: float) -> CounterAnswer:
        tries = 1 if self._connection is None else 2
        for _ in range(tries):
            with suppress(_Ended):
                return self._exchange(asking, until)
            self._drop()
        raise CountersUnavailable("lattice-helper ended the conversation")

    def _exchange(self, asking: CounterQuestion, until: float) -> CounterAnswer:
        connection = self._connection or self._opened(until)
        answer = CounterAnswer()
        try:
            connection.settimeout(_left(until))
            packet.send(connection, asking.written())
            for _ in range(MOST_PACKETS):
                if not read_telling(_received(connection, until), answer):
                    return answer
            raise CountersUnavailable("lattice-helper does not come to an end")
        except TimeoutError:
            raise CountersUnavailable(_SILENT) from None
        except (ConnectionError, BrokenPipeError):
            raise _Ended from None
        except (OSError, packet.BadPacket, BadTelling) as error:
            raise CountersUnavailable("lattice-helper said what can't be", str(error)) from None

    def _opened(self, until: float) -> socket.socket:
        if self._failed is not None and self._clock.monotonic() < self._again_s:
            raise self._failed
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            connection.settimeout(_left(until))
            connection.connect(str(self._path))
            packet.send(connection, write_request("", WatchCounters()))
            answer = read_answer(_received(connection, until))
        except TimeoutError:
            connection.close()
            raise CountersUnavailable(_SILENT) from None
        except (OSError, packet.BadPacket, BadQuestion, _Ended) as error:
            connection.close()
            raise CountersUnavailable(NOT_THERE, _error_text(error)) from None
        if answer.outcome is not Outcome.DONE:
            connection.close()
            raise CountersUnavailable("lattice-helper refuses", inert(answer.message))
        self._connection, self._failed = connection, None
        return connection

    def _give_up(self, error: CountersUnavailable) -> None:
        self._drop()
        if error is not self._failed:
            self._failed, self._again_s = error, self._clock.monotonic() + _REST_S

    def _drop(self) -> None:
        if self._connection is not None:
            with suppress(OSError):
                self._connection.close()
            self._connection = None


def _add(answer: CounterAnswer, part: CounterAnswer) -> None:
    for kind, table in part.rows.items():
        answer.rows.setdefault(kind, {}).update(table)
    answer.failed.update(part.failed)
    answer.unread.update(part.unread)


def _received(connection: socket.socket, until: float) -> bytes:
    connection.settimeout(_left(until))
    raw, descriptors = packet.receive(connection)
    packet.close_all(descriptors)
    if not raw:
        raise _Ended
    return raw


def _left(until: float) -> float:
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _error_text(error: Exception) -> str:
    return inert(getattr(error, "strerror", None) or str(error))[:_LONGEST_TEXT]
