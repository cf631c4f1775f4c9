"""The grammar of an HTTP/1.1 reply: its head, the length of its body, the size of a chunk. Pure.

It is strict where two parsers could disagree: a proxy on the way may have read the same bytes
differently. So it allows no folded lines, no lone line feeds, no second length and no codings that
were not requested. It is fuzzed against h11 (`tests/fuzz/targets/http1.py`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal, TypeAlias

from lattice.base.fast_start.connector import BadReply, status_of_line

BodyLength: TypeAlias = int | Literal["chunked", "until the end"]

_BREAK = re.compile(r"[\0\n\v\f\r]")
_NAME = re.compile(r"[-!#$%&'*+.^_`|~0-9a-zA-Z]+")
# A longer number is no real length, and Python refuses to convert thousands of digits.
_LENGTH = re.compile(r"[0-9]{1,20}")
_CHUNK = re.compile(rb"([0-9a-fA-F]{1,20})[ \t]*(?:;[^\n]*)?")


def read_head(text: str) -> tuple[int, dict[str, str]]:
    """Status and headers. Names are in lower case; the last of repeated headers counts.

    Headers that set the length of the body are checked even if they are not used.
    """
    first, *lines = text.split("\r\n")
    status = status_of_line(first)
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not _NAME.fullmatch(name) or _BREAK.search(value):
            raise BadReply("the answer has a line that is no header")
        name, value = name.lower(), value.strip(" \t")
        if name == "content-length":
            if not _LENGTH.fullmatch(value) or headers.get(name, value) != value:
                raise BadReply("the answer has no sensible length")
        elif name == "transfer-encoding" and (name in headers or value.lower() != "chunked"):
            raise BadReply("the answer has an encoding that was not asked for")
        headers[name] = value
    return status, headers


def body_length(method: str, status: int, headers: Mapping[str, str]) -> BodyLength:
    """The length of the body that follows this head."""
    if method == "HEAD" or status in {204, 304}:
        return 0
    if "transfer-encoding" in headers:
        return "chunked"
    length = headers.get("content-length")
    return "until the end" if length is None else int(length)


def chunk_size(line: bytes) -> int:
    """The size in the line before a chunk; extensions are ignored."""
    found = _CHUNK.fullmatch(line)
    if found is None:
        raise BadReply("the answer has a chunk of no sensible length")
    return int(found[1], 16)
