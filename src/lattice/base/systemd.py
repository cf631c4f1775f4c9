"""What a daemon says to systemd, and the socket it gets from it. Without systemd nothing happens.

The protocols are `sd_notify` (a datagram to the socket that NOTIFY_SOCKET names), the watchdog
(WATCHDOG_USEC) and socket activation (LISTEN_FDS, from descriptor 3 on).
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path

_log = logging.getLogger(__name__)
_FIRST_DESCRIPTOR = 3


class Systemd:
    """The manager of this process, read from its environment."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._address = environment.get("NOTIFY_SOCKET", "")
        usec = environment.get("WATCHDOG_USEC", "")
        is_ours = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        self.watchdog_s = int(usec) / 1e6 if usec.isdigit() and is_ours else 0.0
        """How long the process may be silent; 0.0 if it may be silent for ever."""
        self._alive_s = 0.0
        given = environment.get("LISTEN_PID") == str(os.getpid())
        self._sockets = int(environment.get("LISTEN_FDS", "0")) if given else 0

    def ready(self, status: str = "") -> None:
        """The daemon serves."""
        self._send("READY=1" + (f"\nSTATUS={status}" if status else ""))

    def status(self, text: str) -> None:
        """One line for `systemctl status`."""
        self._send(f"STATUS={text}")

    def stopping(self) -> None:
        self._send("STOPPING=1")

    def alive(self) -> None:
        """The daemon still works; needed once in `watchdog_s`."""
        now_s = time.monotonic()
        if self.watchdog_s and now_s - self._alive_s >= self.watchdog_s / 4:
            self._alive_s = now_s
            self._send("WATCHDOG=1")

    async def keep_alive(self) -> None:
        """Report from the event loop until cancelled, so that one that hangs is restarted."""
        while True:
            self.alive()
            await asyncio.sleep(self.watchdog_s / 3 or 3600.0)

    def inherited(self, path: Path, kind: socket.SocketKind) -> socket.socket | None:
        """The listening socket that systemd opened at this path, or None."""
        for descriptor in range(_FIRST_DESCRIPTOR, _FIRST_DESCRIPTOR + self._sockets):
            found = socket.socket(fileno=descriptor)
            if (found.family, found.type) == (socket.AF_UNIX, kind) and found.getsockname() == str(
                path
            ):
                os.set_inheritable(descriptor, False)
                return found
            found.detach()
        return None

    def _send(self, message: str) -> None:
        if not self._address:
            return
        # A name in the abstract namespace is written with an @.
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as line:
                line.connect(address)
                line.send(message.encode())
        except OSError as error:
            _log.debug("systemd does not listen: %s", error)
