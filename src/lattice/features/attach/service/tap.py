"""The one place that every byte of a session goes through, in both directions.

It counts bytes and notes the last activity. Code that must inspect, hold or refuse frames belongs
here. It reads only a frame's kind, and the holder's last message, which says how the shell ended.
"""

from __future__ import annotations

from lattice.base.clock import Clock
from lattice.domain.pipe import FrameKind
from lattice.domain.terminal import BadMessage, Exit, read_message

_HEAD_BYTES = 17
_MESSAGES = frozenset({FrameKind.DATA, FrameKind.END})


class SessionTap:
    """The counters of one session."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        now_s = clock.monotonic()
        self.typed_bytes = 0
        self.shown_bytes = 0
        self.active_s = now_s
        """The last input or output (monotonic)."""
        self.owed_s: float | None = None
        """Since when the node owes an answer (monotonic). The client's pings request one too."""
        self.left = False
        """True once the client has sent its last message."""
        self.exit: Exit | None = None
        """How the shell ended, from its holder's last message."""

    async def typed(self, frame: bytes) -> None:
        """Note a frame to the node."""
        now_s = self._clock.monotonic()
        if self.owed_s is None:
            self.owed_s = now_s
        if frame[:1] and frame[0] in _MESSAGES:
            self.active_s = now_s
            self.typed_bytes += len(frame) - _HEAD_BYTES
            self.left = self.left or ends(frame)

    async def shown(self, frame: bytes) -> None:
        """Note a frame to the client."""
        self.owed_s = None
        now_s = self._clock.monotonic()
        if frame[:1] and frame[0] in _MESSAGES:
            self.active_s = now_s
            self.shown_bytes += len(frame) - _HEAD_BYTES
            if frame[0] == FrameKind.END and self.exit is None:
                self.exit = _exit(frame[_HEAD_BYTES:])

    def broken(self) -> None:
        """Note that there is no connection to the node now."""
        if self.owed_s is None:
            self.owed_s = self._clock.monotonic()


def ends(frame: bytes) -> bool:
    """True for the frame with the last message of an end."""
    return frame[:1] == bytes((FrameKind.END,))


def _exit(payload: bytes) -> Exit | None:
    try:
        message = read_message(payload)
    except BadMessage:
        return None
    return message if isinstance(message, Exit) else None
