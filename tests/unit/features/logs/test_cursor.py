"""Cursors: what this server gave is read back, and nothing else is one."""

from __future__ import annotations

import base64
import json
import zlib
from typing import Any

import pytest

from lattice.base.errors import UsageError
from lattice.domain.logs import LogKind, LogSource, Position, StreamName
from lattice.features.logs.service.cursor import read_cursor, write_cursor
from tests.nesting import DEEP

NAME = StreamName("n1", LogKind.STDERR, LogSource("0", 3, 2))


def packed(text: bytes) -> str:
    return base64.urlsafe_b64encode(zlib.compress(text)).decode().rstrip("=")


def test_a_cursor_reads_back_whole() -> None:
    at = Position(2**40, 7)
    assert read_cursor(write_cursor(3, {str(NAME): at})) == (3, {NAME: at})


@pytest.mark.parametrize(
    "told",
    [
        {"attempt": -1, "places": {}},
        {"attempt": 10**30, "places": {}},
        {"attempt": 1, "places": {"n1/stdout/batch": [2**63, 0]}},
        {"attempt": 1, "places": {"n1/stdout/batch": [0, 10**30]}},
        {"attempt": 1, "places": {"n1/stdout/batch": [-1, 0]}},
        {"attempt": 1, "places": {"n1/stdout/batch~0": [0, 0]}},
        {"attempt": 1, "places": {"n1/stdout": [0, 0]}},
    ],
)
def test_a_place_that_no_stream_has_is_refused(told: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        read_cursor(packed(json.dumps(told).encode()))


def test_a_cursor_that_nests_too_deeply_is_refused() -> None:
    with pytest.raises(UsageError):
        read_cursor(packed(b'{"attempt":1,"x":%s,"places":{}}' % DEEP))
