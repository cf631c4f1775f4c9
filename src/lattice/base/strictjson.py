"""JSON that two parsers can't read differently.

Python's own parser accepts repeated names, `NaN`, numbers outside the range of a float, and UTF-16.
Between processes that do not trust each other all of that is refused.
"""

from __future__ import annotations

import json
import math
from typing import Any


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
