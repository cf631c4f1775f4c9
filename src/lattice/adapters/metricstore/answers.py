"""Parses the answers of Prometheus' HTTP API: JSON, decoded strictly. Pure.

Values are text in it. `NaN` is a valid value in PromQL, so it is passed on. The code that shows it
decides that it is no measurement.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, TypeVar

import msgspec

from lattice.base.text import inert
from lattice.domain.metricstore import Point, SeriesPoints, StoreSilent, WriteRefused

_LONGEST_TEXT = 400
_ABOUT_US = frozenset({401, 402, 403, 404, 405, 407, 408, 421, 425, 429})
"""Refusals that don't concern the data: after the cause is fixed, it is accepted."""
_Stamped = tuple[float, str]


class _Found(msgspec.Struct):
    metric: dict[str, str] = msgspec.field(default_factory=dict)
    value: _Stamped | None = None
    values: list[_Stamped] | None = None


class _Result(msgspec.Struct):
    result: list[_Found]


class _Answer(msgspec.Struct):
    data: _Result


class _Scalar(msgspec.Struct):
    result: _Stamped


class _ScalarAnswer(msgspec.Struct):
    data: _Scalar


class _SeriesAnswer(msgspec.Struct):
    data: list[dict[str, str]]


class _Refusal(msgspec.Struct):
    error: Annotated[str, msgspec.Meta(min_length=1)]


_answer = msgspec.json.Decoder(_Answer)
_scalar = msgspec.json.Decoder(_ScalarAnswer)
_series = msgspec.json.Decoder(_SeriesAnswer)
_refusal = msgspec.json.Decoder(_Refusal)
T = TypeVar("T")


def points_of(body: bytes) -> tuple[SeriesPoints, ...]:
    """A vector, a matrix, or the number of a scalar. Raises `StoreSilent` for anything else."""
    try:
        found = _answer.decode(body).data.result
    except msgspec.ValidationError:
        return (SeriesPoints({}, (_point(_decoded(_scalar, body).data.result),)),)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise _unread() from None
    return tuple(map(_points, found))


def series_of(body: bytes) -> tuple[Mapping[str, str], ...]:
    """Label sets. Raises `StoreSilent` for anything else."""
    return tuple(_decoded(_series, body).data)


def check_about_us(status: int, body: bytes) -> None:
    """Raises `StoreSilent` if the status concerns the store or the client, not the request."""
    if status < 400 or status >= 500 or status in _ABOUT_US:
        raise StoreSilent(f"it answered {status}: {error_text(body) or 'nothing'}")


def check_written(status: int, body: bytes) -> None:
    """Return if a write was accepted. Raises `StoreSilent` and `WriteRefused`."""
    if not 200 <= status < 300:
        check_about_us(status, body)
        raise WriteRefused(f"it answered {status}: {error_text(body)}")


def error_text(body: bytes) -> str:
    """The store's error text of a failed request; plain text is accepted too."""
    try:
        text = _refusal.decode(body).error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        text = body.decode(errors="replace")
    return inert(text.strip())[:_LONGEST_TEXT]


def _points(found: _Found) -> SeriesPoints:
    stamped = found.values if found.values is not None else []
    if found.value is not None:
        stamped = [found.value]
    return SeriesPoints(found.metric, tuple(map(_point, stamped)))


def _point(stamped: _Stamped) -> Point:
    try:
        return stamped[0], float(stamped[1])
    except ValueError:
        raise StoreSilent("its answer holds a value that is no number") from None


def _decoded(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise _unread() from None


def _unread() -> StoreSilent:
    return StoreSilent("its answer can't be read")
