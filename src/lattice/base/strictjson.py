"""JSON that two parsers can't read differently.

Python's own parser accepts repeated names, `NaN`, numbers outside the range of a float, and UTF-16.
Between processes that do not trust each other all of that is refused.
"""

from __future__ import annotations

import json
import math
from enum import StrEnum
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

_T = TypeVar("_T")


def read_json(data: bytes) -> Any:
    """One JSON value in UTF-8. Raises `ValueError` and nothing else."""
    try:
        return json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_unique,
            parse_constant=_no_constant,
            parse_float=_finite,
        )
    except RecursionError:
        raise ValueError("nested too deeply") from None


def read_fields(value: Any, kind: type[_T]) -> _T:
    """A dataclass from an object with exactly its fields, each of its type. Raises `ValueError`.

    Fields are texts, numbers, flags, string enums, optional ones, and tuples of these.
    """
    hints = get_type_hints(kind)
    if type(value) is not dict or value.keys() != hints.keys():
        raise ValueError(f"not the fields of {kind.__name__}")
    return kind(**{name: _field(value[name], hint, name) for name, hint in hints.items()})


def _field(value: Any, hint: Any, name: str) -> Any:
    inner = get_args(hint)
    if get_origin(hint) is tuple:
        if type(value) is not list or (inner[-1] is not ... and len(value) != len(inner)):
            raise ValueError(f"{name} is no list")
        hints = inner[:1] * len(value) if inner[-1] is ... else inner
        return tuple(_field(*each, name) for each in zip(value, hints, strict=True))
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        try:
            return hint(value)
        except ValueError:
            raise ValueError(f"{name} is not known") from None
    # `type`, because `isinstance(True, int)` is True.
    if type(value) not in (inner or (hint,)):
        raise ValueError(f"{name} is of the wrong type")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands twice")
    return found


def _no_constant(text: str) -> float:
    raise ValueError(f"{text} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("a number is out of range")
    return number
