"""The node's verb `watch_counters`: a child that stays and answers packets until nobody asks.

It gives no content away and changes nothing, so it needs no grant: whoever may ask the helper at
all may ask for numbers. The first answer says that it is there; from then on each packet of the
asker is a question of `lattice.domain.counters`, answered in order. It ends with its peer, with
the helper, after a long silence, and after an hour in any case.

A further kind of figures is one more `Reader`.
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
    Rows,
    Telling,
    read_asking,
    write_telling,
)
from lattice.helper.privilege import Kernel

LONGEST_S = 3600.0
_SILENCE_S = 600.0
_SEND_S = 2.0


class CantTell(Exception):
    """Why a reader has nothing to tell of any job; the text is for people."""


class Reader(Protocol):
    """Tells some kinds of figures. Used by one child alone, from question to question."""

    @property
    def kinds(self) -> frozenset[str]: ...

    @property
    def unread(self) -> Mapping[int, str]:
        """Of the last question: jobs that could not be read, and why."""

    def read(self, wanted: Collection[str], jobs: Sequence[int]) -> Mapping[str, dict[int, Rows]]:
        """By kind and job. Raises `CantTell`; of anything else only its type is told."""

    def close(self) -> None: ...


class Conversation:
    """Holds one connection in a child of its own, which has given its other rights away."""

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
        """Until it is over; then the descriptors that readers keep are closed."""
        parent = os.getppid()
        self._kernel.die_with_parent()
        until = self._monotonic() + self._longest_s
        try:
            # The parent may have ended before the kernel was asked to tell.
            while os.getppid() == parent and (left_s := until - self._monotonic()) > 0:
                connection.settimeout(min(left_s, self._silence_s))
                if not self._answered(connection):
                    return
        except OSError:  # silent for too long, or gone
            return
        finally:
            for reader in self._readers:
                reader.close()

    def _answered(self, connection: socket.socket) -> bool:
        """One question; False when there will be no other."""
        try:
            raw, descriptors = packet.receive(connection)
            packet.close_all(descriptors)
            if not raw:
                return False
            asking = read_asking(raw)
        except (packet.BadPacket, BadTelling):
            return False
        telling = self._told(asking.want, asking.jobs)
        connection.settimeout(_SEND_S)
        try:
            for each in write_telling(telling):
                packet.send(connection, each)
        except packet.BadPacket:
            for each in write_telling(Telling(failed=dict.fromkeys(asking.want, TOO_MUCH))):
                packet.send(connection, each)
        return True

    def _told(self, want: Sequence[str], jobs: Sequence[int]) -> Telling:
        telling = Telling()
        left = set(want)
        for reader in self._readers:
            wanted = left & reader.kinds
            left -= wanted
            if not wanted:
                continue
            try:
                told = reader.read(wanted, jobs)
                telling.told.update({kind: told[kind] for kind in wanted})
                telling.unread.update(reader.unread)
            except CantTell as reason:
                telling.failed.update(dict.fromkeys(wanted, str(reason)))
            except Exception as error:  # noqa: BLE001 - one kind's defect is not the others'
                telling.failed.update(dict.fromkeys(wanted, f"failed ({type(error).__name__})"))
        telling.failed.update(dict.fromkeys(left, NOT_BUILT))
        return telling
