"""JSON that two readers can't understand differently."""

from __future__ import annotations

from typing import Any

import pytest

from lattice.base.strictjson import read_json


@pytest.mark.parametrize(
    "raw",
    [
        b'{"a":1,"a":1}',
        b'[{"a":{"b":1,"b":2}}]',
        b"NaN",
        b"[-Infinity]",
        b"1e999",
        b"9" * 5000,
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b"\xef\xbb\xbf{}",
        "{}".encode("utf-16"),
        "{}".encode("utf-32-le"),
        b'"\xed\xa0\x80"',
        b'"\xff"',
        b"{} {}",
        b"",
    ],
    ids=lambda raw: repr(raw[:12]),
)
def test_what_is_ambiguous_or_no_json_is_refused(raw: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_json(raw)


@pytest.mark.parametrize(
    ("raw", "value"),
    [(b'{"a":[1,2.5,null,true]}', {"a": [1, 2.5, None, True]}), ('"é"'.encode(), "é")],
)
def test_json_is_read(raw: bytes, value: Any) -> None:
    assert read_json(raw) == value
