"""The level of a line of JSON, in a colour: what loggers write for machines, for people. Pure."""

from __future__ import annotations

import re

# Bounded: what stands before it in a long line is not gone through.
_LEVEL = re.compile(
    r'("(?:level|levelname|severity|lvl)"\s{0,4}:\s{0,4}")([A-Za-z]{3,9})(?=")', re.IGNORECASE
)
_LOOKED_AT = 4096
_COLOURS = {
    "fatal": "1;31",
    "critical": "1;31",
    "error": "1;31",
    "err": "1;31",
    "warning": "33",
    "warn": "33",
    "notice": "36",
    "info": "32",
    "debug": "2",
    "trace": "2",
}


def levelled(line: str) -> str:
    """The line with its level painted; it is that of the first field that tells one."""
    found = _LEVEL.search(line, 0, _LOOKED_AT)
    colour = _COLOURS.get(found[2].lower()) if found else None
    if found is None or colour is None:
        return line
    begin, end = found.span(2)
    return f"{line[:begin]}\x1b[{colour}m{line[begin:end]}\x1b[0m{line[end:]}"
