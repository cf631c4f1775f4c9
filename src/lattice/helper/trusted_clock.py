"""The helper's clock: the node's clock, until a server has proven another time.

The agent can't be trusted about time, and the node's clock may be wrong by minutes. So a server
signs its time together with a random nonce of the helper. From then on the time is the signed time
plus the time since the nonce was created. That is measured by `CLOCK_BOOTTIME`, which can't be set
and which continues while the node sleeps.

Invariant: **this clock is never behind the clock of the server that signed**. The nonce was unknown
before it was created, so the signature is younger. A delay of the answer only moves this clock
forward, by at most the 5 s that an answer may take. A signature for an earlier nonce is refused, so
old answers can't turn the clock back.

The proven time stays in a file for as long as the node runs. Otherwise a restarted helper would use
the wrong clock again, and grants that were used before could become valid again.
"""

from __future__ import annotations

import json
import math
import os
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from lattice.base.clock import Clock
from lattice.domain.signedtime import BadTime, SignedTime

ANSWERED_WITHIN_S = 5.0
_NONCE_BYTES = 32
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_LARGEST_FILE = 4096
_WRITTEN = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC


def since_boot() -> float:
    """Seconds since this kernel started, including sleep."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class ProvenClock:
    """A `Clock`. One for the helper's lifetime; children get a copy of its state."""

    def __init__(
        self,
        own: Clock,
        file: Path | None = None,
        *,
        uptime: Callable[[], float] = since_boot,
        boot_id: str = "",
    ) -> None:
        """`own` is the node's clock; `file` stores the proven time for this boot."""
        self._own = own
        self._file = file
        self._uptime = uptime
        self._boot_id = boot_id or _read_boot_id()
        self._begun = uptime()
        self._begun_by_own_s = own.now().timestamp()
        self._asked: tuple[str, float] | None = None
        self._booted_s = self._stored()
        """When this kernel started, in the servers' time; None while no server has proven a
        time.
        """

    @property
    def is_proven(self) -> bool:
        return self._booted_s is not None

    @property
    def begun_s(self) -> int:
        """When this helper started, rounded up to whole seconds, as grants have them."""
        if self._booted_s is None:
            return math.ceil(self._begun_by_own_s)
        return math.ceil(self._booted_s + self._begun)

    def now(self) -> datetime:
        if self._booted_s is None:
            return self._own.now()
        return datetime.fromtimestamp(self._booted_s + self._uptime(), UTC)

    def monotonic(self) -> float:
        return self._own.monotonic()

    def to_server_time(self, here_s: float) -> float:
        """Convert a time of the node's clock, such as a file's, to this clock."""
        if self._booted_s is None:
            return here_s
        return here_s - (self._own.now() - self.now()).total_seconds()

    def challenge(self) -> str:
        """A new nonce for a server to sign; the previous one becomes invalid."""
        nonce = secrets.token_hex(_NONCE_BYTES)
        self._asked = (nonce, self._uptime())
        return nonce

    def prove(self, signed: SignedTime) -> float:
        """Use the time that a server signed; return the change in seconds. Raises `BadTime`."""
        asked, self._asked = self._asked, None
        if asked is None or not secrets.compare_digest(asked[0], signed.nonce):
            raise BadTime("it answers no question of now")
        if not 0 <= self._uptime() - asked[1] <= ANSWERED_WITHIN_S:
            raise BadTime("the answer took too long")
        before = self.now()
        # As if it was signed when the nonce was created: so never behind.
        self._booted_s = (signed.time_ms + 1) / 1000 - asked[1]
        self._keep()
        return (self.now() - before).total_seconds()

    def _stored(self) -> float | None:
        if self._file is None or not self._boot_id:
            return None
        try:
            document = json.loads(self._file.read_bytes()[:_LARGEST_FILE])
            booted_s = document["booted_s"] if document["boot_id"] == self._boot_id else None
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return booted_s if type(booted_s) is float and math.isfinite(booted_s) else None

    def _keep(self) -> None:
        """Write the file atomically. If that fails, the next helper needs a new proof."""
        if self._file is None:
            return
        raw = json.dumps({"boot_id": self._boot_id, "booted_s": self._booted_s}).encode()
        fresh = self._file.with_name(self._file.name + ".new")
        with suppress(OSError):
            file = os.open(fresh, _WRITTEN, 0o600)
            try:
                os.write(file, raw)
            finally:
                os.close(file)
            fresh.rename(self._file)


def _read_boot_id() -> str:
    try:
        return _BOOT_ID.read_text("ascii").strip()
    except (OSError, ValueError):
        return ""
