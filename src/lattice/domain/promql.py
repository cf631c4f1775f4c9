"""Selectors of the metric store with whose series they may find built in. Pure.

The labels that say whose a series is are written by the servers alone, and every question asks for
them by the same function. A value is always inside quotes and escaped; a name that is none of
Prometheus's is refused. So nothing that anybody sends can widen a selector.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from lattice.domain.attempts import JobAttempt
from lattice.domain.metric import CATALOGUE, Labels

_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")


class BadSelector(ValueError):
    """A text that can't be a part of a selector."""


def scope_of(attempt: JobAttempt) -> Labels:
    """What every series of an attempt carries, and every question about it asks for.

    By the id that people know. Where one was used twice, questions tell them apart by their time:
    a use of an id is over before the next begins.
    """
    each = attempt.allocation
    return (
        ("alloc", each.id),
        ("attempt", str(attempt.attempt.number)),
        ("project", each.account),
        ("tenant", each.tenant),
        ("user", each.user),
    )


def selector(
    metric: str, scope: Labels, *, equal: Labels = (), among: Iterable[tuple[str, str]] = ()
) -> str:
    """`lattice_x{alloc="1",…}` for a metric of the catalogue.

    `equal` and `among` narrow it further: by a value, or by an expression that a value has to
    match as a whole. Neither can stand for a label of the scope.
    """
    known = CATALOGUE.get(metric)
    if known is None:
        raise BadSelector(f"{metric!r} is not in the catalogue")
    if not scope:
        raise BadSelector("a selector without a scope")
    taken = {name for name, _ in scope}
    parts = [f"{checked_name(name)}={quoted(value)}" for name, value in scope]
    for sign, pairs in (("=", equal), ("=~", tuple(among))):
        for name, value in pairs:
            if name in taken:
                raise BadSelector(f"the label {name} belongs to the scope")
            parts.append(f"{checked_name(name)}{sign}{quoted(value)}")
    return f"{known.series}{{{','.join(parts)}}}"


def checked_name(name: str) -> str:
    """The name of a label, if it is one. Raises `BadSelector`."""
    if not _NAME.fullmatch(name):
        raise BadSelector(f"{name!r} is no name of a label")
    return name


def quoted(value: str) -> str:
    """A text as PromQL writes one; what it stands for is the text, letter by letter."""
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
