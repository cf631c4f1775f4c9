"""Converts seconds since 1970 to `datetime`. Pure."""

from __future__ import annotations

from datetime import UTC, datetime


def moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def moment_or_none(seconds: float | None) -> datetime | None:
    return None if seconds is None else moment(seconds)
