"""One measurement with its time, or why there is none. Every one has a deadline."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Generic, TypeVar

from lattice.base.clock import Clock
from lattice.base.errors import LatticeError
from lattice.domain.metricstore import BadQuery, StoreSilent, WriteRefused

T = TypeVar("T")

WITHIN_S = 3.0
_LONGEST_REASON = 240
_log = logging.getLogger("lattice.doctor")


class NotUsed(Exception):
    """The site does not use this part; the text is what that means."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspected(Generic[T]):
    """A value and how long it took. Without a value: why, or that the part is not used."""

    value: T | None = None
    took_s: float = 0.0
    reason: str = ""
    hint: str = ""
    off: str = ""


async def inspected(asked: Awaitable[T], clock: Clock, within_s: float = WITHIN_S) -> Inspected[T]:
    """Await it for at most `within_s`. Does not raise."""
    begun_s = clock.monotonic()

    def without(reason: str, hint: str | None = None) -> Inspected[T]:
        # Engines and their commands write several lines.
        text = " ".join(reason.split()).rstrip(".")[:_LONGEST_REASON]
        return Inspected(took_s=clock.monotonic() - begun_s, reason=text, hint=hint or "")

    try:
        async with asyncio.timeout(within_s):
            value = await asked
    except TimeoutError:
        return without(f"no answer within {within_s:g} s")
    except NotUsed as off:
        return Inspected(off=str(off))
    except LatticeError as error:
        return without(error.message, error.hint)
    except (StoreSilent, BadQuery, WriteRefused, OSError) as error:
        return without(str(error) or type(error).__name__)
    except Exception as defect:  # noqa: BLE001 - a defect in one check must not hide the others
        _log.exception("doctor: not foreseen")
        return without(f"internal error: {type(defect).__name__}", "The server's log has it whole.")
    return Inspected(value=value, took_s=clock.monotonic() - begun_s)


def milliseconds(seconds: float) -> str:
    """`12 ms`, `1.4 s`."""
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
