"""Who waits for a store that hangs: one at a time, and not everybody anew. No I/O here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from lattice.base.clock import Clock
from lattice.domain.metricstore import StoreSilent

PAUSE_S = 3.0
"""How long nobody tries after somebody tried in vain."""


class Circuit:
    """Passes calls on while the store answers; after `patience` silences in a row, one at a time.

    A silence is `StoreSilent` out of the call; whatever else comes out of it is an answer.
    """

    def __init__(self, clock: Clock, *, patience: int = 1, pause_s: float = PAUSE_S) -> None:
        self._clock = clock
        self._patience = patience
        self._pause_s = pause_s
        self._silences = 0
        self._words = ""
        self._rests_until_s = 0.0
        self._trying = False
        self.refused_total = 0

    @property
    def is_open(self) -> bool:
        """True while the store is known to be silent."""
        return self._silences >= self._patience

    @contextmanager
    def passing(self) -> Iterator[None]:
        """Around one call. Raises `StoreSilent` at once where others are known to have waited."""
        tries = self.is_open
        if tries:
            if self._trying or self._clock.monotonic() < self._rests_until_s:
                self.refused_total += 1
                raise StoreSilent(self._words)
            self._trying = True
        try:
            yield
        except StoreSilent as silence:
            self._note(str(silence))
            raise
        except Exception:
            self._silences = 0
            raise
        else:
            self._silences = 0
        finally:
            if tries:
                self._trying = False

    def _note(self, words: str) -> None:
        self._silences += 1
        self._words = words
        self._rests_until_s = self._clock.monotonic() + self._pause_s
