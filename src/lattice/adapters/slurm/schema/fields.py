"""Parsers of fields that all schemas share: limited text, times, TRES, states, lenient records.

Pure. A value that is invalid or of a wrong type becomes None or a default; nothing here raises.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import cache
from typing import Any, TypeVar, get_args

import msgspec

from lattice.adapters.slurm.answer import loosely
from lattice.domain.allocation import ExitCode, State

TEXT_LIMIT = 1024
LIST_LIMIT = 64 * 1024
"""Node lists and paths may be long; a list of 10 000 irregularly named nodes fits."""

LARGEST_ID = 2**32 - 1
_LATEST = 253_402_300_799  # the last second of the year 9999, where datetime ends
_NO_VALUE = 0xFFFFFFFE
_INFINITE = 0xFFFFFFFF

StructT = TypeVar("StructT", bound=msgspec.Struct)


def text(value: str | None, limit: int = TEXT_LIMIT) -> str:
    """The text, or an empty string, cut at a length that no real value reaches."""
    return value[:limit] if value else ""


def moment(seconds: int | None) -> datetime | None:
    """A time; None for 0 and for Slurm's markers for "none"."""
    if not seconds or not 0 < seconds <= _LATEST or seconds in (_NO_VALUE, _INFINITE):
        return None
    return datetime.fromtimestamp(seconds, UTC)


def count(value: int | None) -> int | None:
    """A count; None for negative values and for Slurm's markers."""
    if value is None or not 0 <= value < _NO_VALUE:
        return None
    return value


def amount(digits: str | None) -> int | None:
    """A count from a TRES string."""
    return int(digits) if digits and digits.isascii() and digits.isdigit() else None


_SLUID = re.compile(r"s[0-9A-HJKMNP-TV-Z]{13}", re.ASCII)


def sluid(value: str | None) -> str:
    """Slurm's unique id of a run, or an empty string."""
    return value if value and _SLUID.fullmatch(value) else ""


def wait_status(value: int | None) -> ExitCode | None:
    """The exit code in a raw wait status: 768 is 3:0, 9 is 0:9."""
    if value is None or not 0 <= value < _NO_VALUE:
        return None
    signal = value & 0x7F
    return ExitCode(0, signal) if signal else ExitCode(value >> 8 & 0xFF)


_AMOUNT = re.compile(r"[0-9]{1,20}(?:\.[0-9]{1,20})?", re.ASCII)
_MOST_BYTES = 2**63
"""More than a message can carry."""
_UNITS = {"": 20, "K": 10, "M": 20, "G": 30, "T": 40, "P": 50}


def tres_of(listing: str | None) -> dict[str, str]:
    """Parses `cpu=2,mem=512M,gres/gpu:a100=4`; skips malformed parts."""
    pairs = (part.partition("=") for part in (listing or "")[:LIST_LIMIT].split(","))
    return {key: value for key, mark, value in pairs if mark}


def memory_bytes(value: str) -> int | None:
    """`512M` and similar in bytes; a number without a unit is in mebibytes."""
    number = value.rstrip("KMGTPkmgtp")
    shift = _UNITS.get(value[len(number) :].upper())
    if shift is None or not _AMOUNT.fullmatch(number):
        return None
    size = int(float(number) * 2**shift)
    return size if size < _MOST_BYTES else None


def gpus_in(tres: dict[str, str]) -> int:
    """GPUs of all types. If both are given, the untyped entry is the sum."""
    if "gres/gpu" in tres:
        return _small(tres["gres/gpu"])
    return sum(_small(value) for key, value in tres.items() if key.startswith("gres/gpu:"))


def _small(value: str) -> int:
    return int(value) if value.isascii() and value.isdigit() and len(value) <= 10 else 0


# Slurm's own order: squeue shows the first of these flags that is set.
_FLAG_ORDER = (
    State.COMPLETING,
    State.STAGE_OUT,
    State.CONFIGURING,
    State.RESIZING,
    State.REQUEUED,
    State.REQUEUE_HOLD,
    State.SPECIAL_EXIT,
    State.STOPPED,
    State.REVOKED,
    State.RESV_DEL_HOLD,
    State.SIGNALING,
)
_BY_WORD: dict[str, State] = {each.value.upper(): each for each in State}
_BY_WORD["REQUEUE_FED"] = State.REQUEUED


def state_of(names: str | Iterable[str] | None) -> State:
    """The one state to show for Slurm's word, or for a base state with flags."""
    if not names:
        return State.UNKNOWN
    if isinstance(names, str):
        return _BY_WORD.get(names.upper(), State.UNKNOWN)
    states = [_BY_WORD[name.upper()] for name in names if name.upper() in _BY_WORD]
    for flag in _FLAG_ORDER:
        if flag in states:
            return flag
    return states[0] if states else State.UNKNOWN


def record(raw: bytes | msgspec.Raw, decoder: msgspec.json.Decoder[StructT]) -> StructT | None:
    """One record. A field of a wrong type is skipped; None if it is no object."""
    try:
        return decoder.decode(raw)
    except (msgspec.MsgspecError, UnicodeError, RecursionError, ValueError):
        pass
    try:
        value = loosely(bytes(raw))
    except (ValueError, RecursionError):
        return None
    return _fitting(value, decoder.type) if isinstance(value, dict) else None


def _fitting(value: dict[Any, Any], kind: type[StructT]) -> StructT:
    known: dict[str, Any] = {}
    for field, nested in _fields(kind):
        if field.encode_name not in value:
            continue
        found = value[field.encode_name]
        if nested is not None and isinstance(found, dict):
            known[field.name] = _fitting(found, nested)
            continue
        try:
            known[field.name] = msgspec.convert(found, field.type)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            continue
    return kind(**known)


@cache
def _fields(
    kind: type[msgspec.Struct],
) -> list[tuple[msgspec.structs.FieldInfo, type[msgspec.Struct] | None]]:
    """Each field, and its struct type if any. Cached: msgspec reads the annotations each time."""
    return [(field, _struct_in(field.type)) for field in msgspec.structs.fields(kind)]


def _struct_in(annotation: Any) -> type[msgspec.Struct] | None:
    for each in (annotation, *get_args(annotation)):
        if isinstance(each, type) and issubclass(each, msgspec.Struct):
            return each
    return None
