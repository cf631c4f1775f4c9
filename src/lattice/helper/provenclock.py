"""The helper's idea of time: the node's clock, until a server has proven another.

The agent can't be believed about time, and the node's clock may be wrong by minutes. So a server
signs its time together with a word that was drawn here at random. From then on time is what it
signed, plus what has passed since the word was drawn by the kernel's own count (`CLOCK_BOOTTIME`,
which nobody sets and which goes on while the node sleeps).

The law: **this clock is never behind the clock of the server that signed.** The word was not known
before it was drawn, so the signature is younger than the drawing; whatever the answer was delayed
by only brings this clock forward, by no more than the few seconds an answer may take. Nothing that
was signed for an earlier word says anything here, so nobody who kept old answers can turn it back.

What was proven stays in a file for as long as the node runs: a helper that starts again would
else fall back to the wrong clock, by which grants used before could be valid once more.
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
    """Seconds since this kernel started, those in which it slept too."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class ProvenClock:
    """A `Clock`. One for the life of the helper; its children have it as it was."""

    def __init__(
        self,
        own: Clock,
        file: Path | None = None,
        *,
        uptime: Callable[[], float] = since_boot,
        boot_id: str = "",
    ) -> None:
        """`own` is the node's; in `file` stays what was proven, for this boot."""
        self._own = own
        self._file = file
        self._uptime = uptime
        self._boot_id = boot_id or _read_boot_id()
        self._begun = uptime()
        self._begun_by_own_s = own.now().timestamp()
        self._asked: tuple[str, float] | None = None
        self._booted_s = self._kept()
        """When this kernel started by the servers' time; None while no server has proven any."""

    @property
    def is_proven(self) -> bool:
        return self._booted_s is not None

    @property
    def begun_s(self) -> int:
        """When this helper began, never too early: in whole seconds, as grants have them."""
        if self._booted_s is None:
            return math.ceil(self._begun_by_own_s)
        return math.ceil(self._booted_s + self._begun)

    def now(self) -> datetime:
        if self._booted_s is None:
            return self._own.now()
        return datetime.fromtimestamp(self._booted_s + self._uptime(), UTC)

    def monotonic(self) -> float:
        return self._own.monotonic()

    def told(self, here_s: float) -> float:
        """A moment of the node's clock (the time of a file, say) as this clock has it."""
        if self._booted_s is None:
            return here_s
        return here_s - (self._own.now() - self.now()).total_seconds()

    def challenge(self) -> str:
        """A word for a server to sign; the one before it is void."""
        nonce = secrets.token_hex(_NONCE_BYTES)
        self._asked = (nonce, self._uptime())
        return nonce

    def prove(self, signed: SignedTime) -> float:
        """Go by what a server signed; by how many seconds the clock moved. Raises `BadTime`."""
        asked, self._asked = self._asked, None
        if asked is None or not secrets.compare_digest(asked[0], signed.nonce):
            raise BadTime("it answers no question of now")
        if not 0 <= self._uptime() - asked[1] <= ANSWERED_WITHIN_S:
            raise BadTime("the answer took too long")
        before = self.now()
        # As if signed in the very moment of the question: never behind.
        self._booted_s = (signed.time_ms + 1) / 1000 - asked[1]
        self._keep()
        return (self.now() - before).total_seconds()

    def _kept(self) -> float | None:
        if self._file is None or not self._boot_id:
            return None
        try:
            told = json.loads(self._file.read_bytes()[:_LARGEST_FILE])
            booted_s = told["booted_s"] if told["boot_id"] == self._boot_id else None
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return booted_s if type(booted_s) is float and math.isfinite(booted_s) else None

    def _keep(self) -> None:
        """Whole or not at all. Where it can't be kept, the next helper is told anew."""
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
