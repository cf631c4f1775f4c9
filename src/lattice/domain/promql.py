"""Parts of selectors of the metric store: the labels of an owner, names and values. Pure.

Only servers write the labels of an owner, and every query gets them from the same function. Values
are always quoted and escaped. Names that Prometheus does not allow are refused. So text from
outside can't widen a selector (`lattice.observe.metric_query`).
"""

from __future__ import annotations

import re

from lattice.domain.attempts import JobAttempt
from lattice.domain.metric import Labels

_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")


class BadSelector(ValueError):
    """A text that can't be a part of a selector."""


def scope_of(attempt: JobAttempt) -> Labels:
    """The labels that every series of an attempt has, and every query about it selects.

    They use the plain id. If an id was used twice, queries separate the uses by time: one ends
    before the next begins.
    """
    each = attempt.allocation
    return (
        ("alloc", each.id),
        ("attempt", str(attempt.attempt.number)),
        ("project", each.account),
        ("tenant", each.tenant),
        ("user", each.user),
    )


def checked_name(name: str) -> str:
    """The name of a label, unchanged. Raises `BadSelector`."""
    if not _NAME.fullmatch(name):
        raise BadSelector(f"{name!r} is no name of a label")
    return name


def quoted(value: str) -> str:
    """A PromQL string literal of exactly this text. Raises `BadSelector` for a lone surrogate."""
    letters = []
    for letter in value:
        point = ord(letter)
        if letter in {'"', "\\"}:
            letters.append("\\" + letter)
        elif 0xD800 <= point <= 0xDFFF:
            raise BadSelector("half of a surrogate pair")
        elif letter.isprintable():
            letters.append(letter)
        else:
            letters.append(f"\\u{point:04x}" if point <= 0xFFFF else f"\\U{point:08x}")
    return '"' + "".join(letters) + '"'
