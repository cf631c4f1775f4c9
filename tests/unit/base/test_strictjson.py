"""JSON that two readers can't understand differently."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import pytest

from lattice.base.strictjson import read_fields, read_json


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


class Colour(StrEnum):
    RED = "red"


@dataclass(frozen=True, slots=True)
class Sheet:
    name: str
    count: int
    size: int | None
    colour: Colour
    tags: tuple[str, ...]
    pairs: tuple[tuple[str, str], ...]


SHEET: dict[str, Any] = {
    "name": "a",
    "count": 1,
    "size": None,
    "colour": "red",
    "tags": ["x"],
    "pairs": [["k", "v"]],
}


def test_a_dataclass_is_read_from_exactly_its_fields() -> None:
    assert read_fields(SHEET, Sheet) == Sheet("a", 1, None, Colour.RED, ("x",), (("k", "v"),))
    assert read_fields({**SHEET, "size": 2}, Sheet).size == 2


@pytest.mark.parametrize(
    "change",
    [
        {"more": 1},
        {"name": 1},
        {"count": True},
        {"count": 1.0},
        {"size": "1"},
        {"colour": "blue"},
        {"colour": []},
        {"tags": "x"},
        {"tags": [1]},
        {"pairs": [["k"]]},
        {"pairs": [["k", 1]]},
        {"pairs": ["kv"]},
    ],
)
def test_fields_of_other_types_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"not the fields|wrong type|no list|not known"):
        read_fields(SHEET | change, Sheet)


@pytest.mark.parametrize("value", [None, [], "x", {}, {"name": "a"}])
def test_a_document_without_all_fields_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="not the fields of Sheet"):
        read_fields(value, Sheet)
