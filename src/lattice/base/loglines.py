"""What all log lines have in common: no secrets, nothing a terminal acts on, bounded length.

Anything that looks like a token, or has a name like one, is removed as the last step. That is a
safety net for careless lines, not a licence to write them.
"""

from __future__ import annotations

import atexit
import logging
import re
import weakref
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from lattice.base.repeated_lines import RepeatedLines

REDACTED = "[redacted]"

_SECRET_NAME = re.compile(
    r"token|secret|passw|authori[sz]ation$|cookie|credential|private_?key|api_?key", re.IGNORECASE
)
_HARMLESS_NAME = re.compile(r"(_file|_uri|_url|_endpoint|_type|_name)$")


class _Secret(NamedTuple):
    pattern: re.Pattern[str]
    instead: str
    marks: tuple[str, ...]
    """In lower case. A text without any of them has no match; to find one of them is cheap."""


_NAMED = ("token", "secret", "password")
# Each begins where no letter precedes it, which keeps the search linear on any text.
_SECRET_TEXT = (
    _Secret(
        re.compile(r"(?s)-----BEGIN [A-Z ]{0,20}PRIVATE KEY-----.*?(-----END|\Z)"),
        REDACTED,
        ("-----begin",),
    ),
    _Secret(
        re.compile(r"(?<![\w-])(bearer|basic|negotiate)\s+[^\s\"',;]+", re.IGNORECASE),
        rf"\1 {REDACTED}",
        ("bearer", "basic", "negotiate"),
    ),
    _Secret(
        re.compile(r"(?<![\w-])e[yw][A-Za-z0-9_-]{10,}(\.[A-Za-z0-9_-]*){1,4}"),
        REDACTED,
        ("ey", "ew"),
    ),
    _Secret(
        re.compile(r"(?<![\w.-])[\w-]{16,}\.[\w-]{16,}\.[\w-]{16,}(?![\w-])", re.ASCII),
        REDACTED,
        (".",),
    ),
    _Secret(re.compile(r"(?<=://)[^/\s:@]*:[^/\s@]*(?=@)"), REDACTED, ("@",)),
    _Secret(
        re.compile(r"([?&](?:code|ticket|state|sig(?:nature)?)=)[^&\s\"']+", re.IGNORECASE),
        rf"\1{REDACTED}",
        ("=",),
    ),
    _Secret(
        re.compile(
            r"(?<![A-Za-z0-9])([\w-]{0,32}(?:token|secret|password)[\"']?\s?=\s?[\"']?)[^&\s\"',;]+",
            re.IGNORECASE | re.ASCII,
        ),
        rf"\1{REDACTED}",
        _NAMED,
    ),
    _Secret(
        re.compile(
            r"([\"'][\w-]{0,32}(?:token|secret|password)[\"']\s?:\s?[\"'])[^\"']+",
            re.IGNORECASE | re.ASCII,
        ),
        rf"\1{REDACTED}",
        _NAMED,
    ),
)
_LONGEST_TEXT = 16 << 10
_DEEPEST = 6
_MOST_NAMES = 1024
_LONGEST_NAME = 64
_CHATTY = ("httpx2", "httpcore2", "asyncio", "grpc", "uvicorn.access")


def install(handler: logging.Handler, level: str) -> None:
    """Make this the only handler of the process."""
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    repeated = RepeatedLines(handler)
    handler.addFilter(repeated)
    atexit.register(_write_counts, weakref.ref(repeated))
    logging.captureWarnings(capture=True)
    set_level(level)


def _write_counts(repeated: weakref.ref[RepeatedLines]) -> None:
    found = repeated()
    if found is not None:
        found.write_all()


def set_level(level: str) -> None:
    """From now on write lines of this level and above."""
    root = logging.getLogger()
    root.setLevel(level.upper())
    for name in _CHATTY:
        # One line for each call of a library would hide the lines of the server.
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))


def redacted(event: Mapping[str, Any]) -> dict[str, Any]:
    """The event without secrets; the last step before rendering."""
    return {_name(name).shown: _clean(name, value, 0) for name, value in event.items()}


def redact_text(text: str) -> str:
    """The text without what looks like a secret, cut to 16 Ki characters."""
    if len(text) > _LONGEST_TEXT:
        text = f"{text[:_LONGEST_TEXT]}… ({len(text)} characters)"
    # Where case is ignored, letters outside ASCII match, too, and their lower case is another.
    is_ascii, lower = text.isascii(), text.lower()
    for pattern, instead, marks in _SECRET_TEXT:
        if not is_ascii or any(map(lower.__contains__, marks)):
            text = pattern.sub(instead, text)
    return text


class _Name(NamedTuple):
    """The name of a field."""

    shown: str
    is_secret: bool


def _name(name: str) -> _Name:
    return _known_name(name) if len(name) <= _LONGEST_NAME else _judged_name(name)


def _judged_name(name: str) -> _Name:
    is_secret = bool(_SECRET_NAME.search(name) and not _HARMLESS_NAME.search(name))
    return _Name(redact_text(name), is_secret)


_known_name = lru_cache(_MOST_NAMES)(_judged_name)


def _clean(name: str, value: Any, depth: int) -> Any:
    if value is None or isinstance(value, bool | int | float):
        return value
    if _name(name).is_secret:
        return REDACTED if value else value
    if depth >= _DEEPEST:
        return REDACTED
    if isinstance(value, Mapping):
        return {
            _name(str(key)).shown: _clean(str(key), each, depth + 1) for key, each in value.items()
        }
    if isinstance(value, list | tuple | set | frozenset):
        return [_clean("", each, depth + 1) for each in value]
    if isinstance(value, bytes | bytearray):
        value = bytes(value).decode("ascii", "backslashreplace")
    return redact_text(value if isinstance(value, str) else str(value))


def unarmed(text: str) -> str:
    """Escape what a terminal would act on. JSON needs no such step."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() or each == "\n" else ascii(each)[1:-1] for each in text
    )
