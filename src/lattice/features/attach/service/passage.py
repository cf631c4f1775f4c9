"""The one place that every byte of a session goes through, in both directions.

It counts, and knows when somebody last did something. Whatever must see, hold or refuse what
passes sits here. Only a frame's kind is looked at; the holder's last message is read, because it
says how the shell ended.
"""

from __future__ import annotations

from lattice.base.clock import Clock
from lattice.domain.pipe import Kind
from lattice.domain.terminal import BadMessage, Exit, read_message

_HEAD_BYTES = 17
_MESSAGES = frozenset({Kind.DATA, Kind.END})


class Passage:
    """What one session has had pass by."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        now_s = clock.monotonic()
        self.typed_bytes = 0
        self.shown_bytes = 0
        self.active_s = now_s
        """When something was last typed or shown, by the monotonic clock."""
        self.owed_s: float | None = None
        """Since when the node owes an answer; the client's own pings ask for one."""
        self.exit: Exit | None = None
        """How the shell ended, once its holder has said so."""

    async def typed(self, frame: bytes) -> None:
        """A frame on its way to the node."""
        now_s = self._clock.monotonic()
        if self.owed_s is None:
            self.owed_s = now_s
        if frame[:1] and frame[0] in _MESSAGES:
            self.active_s = now_s
            self.typed_bytes += len(frame) - _HEAD_BYTES

    async def shown(self, frame: bytes) -> None:
        """A frame on its way to the client."""
        self.owed_s = None
        now_s = self._clock.monotonic()
        if frame[:1] and frame[0] in _MESSAGES:
            self.active_s = now_s
            self.shown_bytes += len(frame) - _HEAD_BYTES
            if frame[0] == Kind.END and self.exit is None:
                self.exit = _exit(frame[_HEAD_BYTES:])

    def broken(self) -> None:
        """There is no way to the node just now."""
        if self.owed_s is None:
            self.owed_s = self._clock.monotonic()


def ends(frame: bytes) -> bool:
    """True for the frame with an end's last message."""
    return frame[:1] == bytes((Kind.END,))


def _exit(payload: bytes) -> Exit | None:
    try:
        message = read_message(payload)
    except BadMessage:
        return None
    return message if isinstance(message, Exit) else None
