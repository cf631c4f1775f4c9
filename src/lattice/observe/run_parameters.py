"""What a training was given, as its run store has it: bounded, and without secrets. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from lattice.base.loglines import REDACTED, redact_text
from lattice.domain.training_run import LONGEST_NAME, MOST_PARAMETERS

_SECRET_NAME = re.compile(
    r"(token|secret|passw(or)?d|passphrase|credentials?|(api|access|private)[_-]?key)$",
    re.IGNORECASE,
)
"""Only at the end of a name: `tokenizer` and `max_tokens` are parameters like others."""


def known_parameters(found: Iterable[tuple[str, str]]) -> dict[str, str]:
    """The first `MOST_PARAMETERS` by name. What looks like a secret is not kept."""
    some = sorted((name[:LONGEST_NAME], value[:LONGEST_NAME]) for name, value in found)
    return {name: _value(name, value) for name, value in some[:MOST_PARAMETERS]}


def _value(name: str, value: str) -> str:
    if _SECRET_NAME.search(name) and not _is_number(value):
        return REDACTED
    return redact_text(value)


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False
