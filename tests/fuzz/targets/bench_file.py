"""A file of `lattice bench capture`, which may come from anybody.

- Any bytes are a capture or `BadCapture`; no other exception escapes.
- A capture compared with itself shows no difference, and no text that moves a terminal's cursor.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from lattice.base.style import Style
from lattice.domain.statistics.sureness import Sureness
from lattice.features.bench.model import BadCapture, compared_captures, read_capture
from lattice.features.bench.render import capture_text, comparison_text

TOKENS = (
    b'"kind":"lattice-bench"',
    b'"version":1',
    b'"facts"',
    b'"measures"',
    b'"memory_copy"',
    b'"samples":[1,2,3,4,5,6,7,8]',
    b'"reason":"x"',
    b'"value":1',
    b'"vcpus"',
    b"1e308",
    b"1e-300",
    b"NaN",
    b"null",
    b"\\u001b",
)


def seeds() -> Iterable[bytes]:
    samples = [1.0, 1.1, 0.9, 1.0, 1.05, 0.95, 1.0, 1.0]
    whole = {
        "kind": "lattice-bench",
        "version": 1,
        "name": "n1",
        "time": "2026-11-19T12:00:00+00:00",
        "lattice": "1",
        "facts": {"vcpus": {"value": 8}, "kernel": {"value": "6.1"}, "rdma": {"reason": "none"}},
        "measures": {"memory_copy": {"tool": "x", "samples": samples}},
    }
    yield json.dumps(whole).encode()
    for change in (
        {"version": 2},
        {"name": "\x1b[2J"},
        {"facts": {}},
        {"facts": {"vcpus": {"value": -1}}},
        {"measures": {}},
        {"measures": {"fio_read": {"reason": "fio is not installed"}}},
        {"measures": {"memory_copy": {"samples": [1] * 7}}},
        {"measures": {"memory_copy": {"samples": [1e18, 1e-300] * 8}}},
        {"measures": {"loopback_trip": {"samples": [5e-324] * 9}}},
        {"time": "2026"},
    ):
        yield json.dumps(whole | change).encode()


def try_one(data: bytes) -> None:
    try:
        found = read_capture(data)
    except BadCapture:
        return
    comparison = compared_captures(found, found)
    for each in comparison.measures:
        assert each.sureness in {Sureness.NONE_FOUND, Sureness.UNKNOWN}
        assert each.percent is not None or each.reason
    assert comparison.facts == ()
    style = Style(width=100)
    for text in (capture_text(found, style), comparison_text(comparison, style)):
        assert text.replace("\n", "").isprintable()
