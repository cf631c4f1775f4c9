"""Parses and formats times and durations for people. Pure.

Durations have Slurm's style: `02:03:04`, from a day on `1-02:03:04`.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo

from lattice.base.errors import UsageError
from lattice.base.style import Style

_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_HINT = "Write a time as 14:02, 2026-11-15T14:02, 5m, 2h, 3d, today or yesterday."


def duration(seconds: float | None) -> str:
    """Seconds in Slurm's style; None is `—`."""
    if seconds is None:
        return "—"
    minutes, second = divmod(max(int(seconds), 0), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    clock = f"{hour:02}:{minute:02}:{second:02}"
    return f"{days}-{clock}" if days else clock


def age(seconds: float) -> str:
    """A rough duration for a sentence: `40 s`, `5 min`, `2 h`, `3 d`."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return f"{int(seconds)} s"


def silence(seconds: float | None) -> str:
    """The phrase for something that does not answer, with the duration if known and 1 s or more."""
    if seconds is None or seconds < 1:
        return "does not answer"
    return f"has not answered for {age(seconds)}"


def moment(value: datetime | None, style: Style, now: datetime) -> str:
    """Only the time if it is today, otherwise with the date; None is `—`."""
    if value is None:
        return "—"
    shown, today = style.local(value), style.local(now)
    mark = "Z" if style.is_utc else ""
    if shown.date() == today.date():
        return f"{shown:%H:%M:%S}{mark}"
    return f"{shown:%Y-%m-%d %H:%M:%S}{mark}"


def parse_duration(text: str) -> int:
    """Seconds of `90`, `5m`, `1h30m`, `2d`; raises `UsageError`."""
    if text.isascii() and text.isdigit():
        return int(text)
    total, digits = 0, ""
    for letter in text:
        if letter.isascii() and letter.isdigit():
            digits += letter
        elif letter in _UNITS_S and digits:
            total += int(digits) * _UNITS_S[letter]
            digits = ""
        else:
            break
    else:
        if text and not digits and total < 10**10:
            return total
    raise UsageError(f"{text!r} is not a length of time", hint="Write 90s, 5m, 1h30m or 2d.")


def parse_moment(text: str, now: datetime, zone: tzinfo | None) -> datetime:
    """The time meant by RFC 3339, `14:02`, `5m` (ago), `now`, `today` or `yesterday`, in UTC."""
    here = now.astimezone(zone)
    midnight = here.replace(hour=0, minute=0, second=0, microsecond=0)
    if text in {"now", "today", "yesterday"}:
        # A day back on the wall clock, not 24 hours: they differ when the clocks change.
        days = {"now": None, "today": 0, "yesterday": 1}[text]
        if days is None:
            return now.astimezone(UTC)
        return _wall(midnight.replace(tzinfo=None) - timedelta(days=days), zone)
    try:
        return _parse(text, here, now, zone)
    except (ValueError, OverflowError, UsageError):
        raise UsageError(f"{text!r} is not a time", hint=_HINT) from None


def _parse(text: str, here: datetime, now: datetime, zone: tzinfo | None) -> datetime:
    if text and text[-1] in _UNITS_S:
        return (now - timedelta(seconds=parse_duration(text))).astimezone(UTC)
    if len(text) in {5, 8} and text[2] == ":":
        clock = datetime.strptime(text, "%H:%M" if len(text) == 5 else "%H:%M:%S")  # noqa: DTZ007
        wall = datetime.combine(here.date(), clock.time())
        found = _wall(wall, zone)
        # A time of day that is still to come means yesterday.
        return found if found <= now else _wall(wall - timedelta(days=1), zone)
    value = datetime.fromisoformat(text)
    return value.astimezone(UTC) if value.tzinfo else _wall(value, zone)


def _wall(value: datetime, zone: tzinfo | None) -> datetime:
    return (value.replace(tzinfo=zone) if zone else value.astimezone()).astimezone(UTC)
