"""The grammar of an HTTP/1.1 answer: its head, how long its body is, the size of a chunk. Pure.

Strict where two readers of the same bytes could disagree: whoever stands between us and the server
may have read them another way. So there are no folded lines, no line feeds alone, no second length
and no codings that nobody asked for. It is fuzzed against h11 (`tests/fuzz/targets/http1.py`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal, TypeAlias

from lattice.base.connector import BadReply, status_of_line

BodyLength: TypeAlias = int | Literal["chunked", "until the end"]

_BREAK = re.compile(r"[\0\n\v\f\r]")
_NAME = re.compile(r"[-!#$%&'*+.^_`|~0-9a-zA-Z]+")
# More digits are no length of anything, and Python refuses to read some thousand of them.
_LENGTH = re.compile(r"[0-9]{1,20}")
_CHUNK = re.compile(rb"([0-9a-fA-F]{1,20})[ \t]*(?:;[^\n]*)?")


def read_head(text: str) -> tuple[int, dict[str, str]]:
    """Status and headers. Names are in lower case; the last of several alike counts."""
    first, *lines = text.split("\r\n")
    status = status_of_line(first)
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not _NAME.fullmatch(name) or _BREAK.search(value):
            raise BadReply("the answer has a line that is no header")
        name, value = name.lower(), value.strip(" \t")
        if name == "content-length" and headers.get(name, value) != value:
            raise BadReply("the answer has two lengths")
        if name == "transfer-encoding" and name in headers:
            raise BadReply("the answer is encoded twice")
        headers[name] = value
    return status, headers


def body_length(method: str, status: int, headers: Mapping[str, str]) -> BodyLength:
    """How long the body of an answer is. A wrong length counts though it is not used."""
    coding, length = headers.get("transfer-encoding"), headers.get("content-length")
    if coding is not None and coding.lower() != "chunked":
        raise BadReply("the answer has an encoding that was not asked for")
    if length is not None and not _LENGTH.fullmatch(length):
        raise BadReply("the answer has no sensible length")
    if method == "HEAD" or status in {204, 304}:
        return 0
    if coding is not None:
        return "chunked"
    return "until the end" if length is None else int(length)


def chunk_size(line: bytes) -> int:
    """The size in the line before a chunk; extensions are passed over."""
    found = _CHUNK.fullmatch(line)
    if found is None:
        raise BadReply("the answer has a chunk of no sensible length")
    return int(found[1], 16)
