"""The node's verb `watch_counters`: a child that answers packets until the client stops asking.

It returns counters only and changes nothing, so it needs no grant: any client that the helper
admits may read them. The first answer confirms the start. Then each packet of the client is a
request of `lattice.domain.counters`, and the child answers them in order. The child ends with its
peer, with the helper, after ten minutes without a request, and after an hour in any case.

A further kind of counters is one more `Reader`.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from lattice.base import packet
from lattice.domain.counters import (
    NOT_BUILT,
    TOO_MUCH,
    BadTelling,
    CounterAnswer,
    Rows,
    read_asking,
    write_telling,
)
from lattice.helper.privilege import Kernel

LONGEST_S = 3600.0
_SILENCE_S = 600.0
_SEND_S = 2.0


class NoValues(Exception):
    """Why a reader has no values for any job; the text is for people."""


class Reader(Protocol):
    """Reads some kinds of counters. One child uses it for all its requests."""

    @property
    def kinds(self) -> frozenset[str]: ...

    @property
    def unread(self) -> Mapping[int, str]:
        """Of the last request: jobs that could not be read, and why."""

    def read(self, wanted: Collection[str], jobs: Sequence[int]) -> Mapping[str, dict[int, Rows]]:
        """Rows by kind and job. Raises `NoValues`; of any other error only the type is reported."""

    def close(self) -> None: ...


class Conversation:
    """Serves one connection in its own child, which has dropped its other rights."""

    def __init__(
        self,
        readers: Sequence[Reader],
        kernel: Kernel,
        *,
        longest_s: float = LONGEST_S,
        silence_s: float = _SILENCE_S,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._readers = readers
        self._kernel = kernel
        self._longest_s = longest_s
        self._silence_s = silence_s
        self._monotonic = monotonic

    def hold(self, connection: socket.socket) -> None:
        """Serve until the connection ends, then close the readers."""
        parent = os.getppid()
        self._kernel.die_with_parent()
        until = self._monotonic() + self._longest_s
        try:
            # The parent may have ended before die_with_parent() was called.
            while os.getppid() == parent and (left_s := until - self._monotonic()) > 0:
                connection.settimeout(min(left_s, self._silence_s))
                if not self._answered(connection):
                    return
        except OSError:  # silent for too long, or disconnected
            return
        finally:
            for reader in self._readers:
                reader.close()

    def _answered(self, connection: socket.socket) -> bool:
        """Answer one request. Return False when no other can follow."""
        try:
            raw, descriptors = packet.receive(connection)
            packet.close_all(descriptors)
            if not raw:
                return False
            asking = read_asking(raw)
        except (packet.BadPacket, BadTelling):
            return False
        telling = self._answer_to(asking.want, asking.jobs)
        connection.settimeout(_SEND_S)
        try:
            for each in write_telling(telling):
                packet.send(connection, each)
        except packet.BadPacket:
            for each in write_telling(CounterAnswer(failed=dict.fromkeys(asking.want, TOO_MUCH))):
                packet.send(connection, each)
        return True

    def _answer_to(self, want: Sequence[str], jobs: Sequence[int]) -> CounterAnswer:
        telling = CounterAnswer()
        left = set(want)
        for reader in self._readers:
            wanted = left & reader.kinds
            left -= wanted
            if not wanted:
                continue
            try:
                rows = reader.read(wanted, jobs)
                telling.rows.update({kind: rows[kind] for kind in wanted})
                telling.unread.update(reader.unread)
            except NoValues as reason:
                telling.failed.update(dict.fromkeys(wanted, str(reason)))
            except Exception as error:  # noqa: BLE001 - one kind's defect is not the others'
                telling.failed.update(dict.fromkeys(wanted, f"failed ({type(error).__name__})"))
        telling.failed.update(dict.fromkeys(left, NOT_BUILT))
        return telling
