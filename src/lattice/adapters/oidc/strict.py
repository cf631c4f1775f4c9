"""Strict parsers of JSON and base64url for signed data.

Two parsers must never read one text differently. So these refuse repeated keys, stray characters,
loose padding and numbers that JSON does not have. Python's own parsers accept those.
"""

from __future__ import annotations

import base64
import json
import re
from typing import Any

from lattice.base.strictjson import read_json

_BASE64URL = re.compile(rb"[A-Za-z0-9_-]+")


def base64url(text: bytes) -> bytes:
    """Decode the one canonical form without padding. Raises ValueError."""
    if not _BASE64URL.fullmatch(text):
        raise ValueError("not base64url")
    data = base64.urlsafe_b64decode(text + b"=" * (-len(text) % 4))
    # The last character may have bits that decoding drops: two texts with one value.
    if base64.urlsafe_b64encode(data).rstrip(b"=") != text:
        raise ValueError("not canonical base64url")
    return data


def json_object(data: bytes) -> dict[str, Any]:
    """One JSON object with only valid Unicode strings. Raises ValueError."""
    try:
        value = read_json(data)
        # Escapes can form half a surrogate pair, which can't be encoded later.
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")  # noqa: TRY004 - one kind of error for foreign text
    return value
