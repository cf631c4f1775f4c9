"""The output of a check job: lines of its nodes between whatever else a job prints.

- Any text gives measures, or none; no exception escapes.
- A measure has a figure or a reason, and nothing in it moves a terminal's cursor.
- Without the secret of the check no line counts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from lattice.domain.node_check import MEASURES, read_output

SECRET = "0f" * 16
TOKENS = (
    f"\nlattice-check {SECRET} ".encode(),
    b'{"node":"n1","measures":[',
    b'{"name":"link","value":1e9,"tool":"TCP","peer":"n2"}',
    b'{"name":"trip","reason":"x"}',
    b"]}",
    b'"value":1e999',
    b'"value":NaN',
    b'"value":null',
    b"\\u001b[2J",
)


def seeds() -> Iterable[bytes]:
    link = {"name": "link", "value": 1e9, "tool": "TCP", "peer": "n2"}
    for measures in (
        [link],
        [link, {"name": "trip", "reason": "why"}],
        [{"name": "disk_read", "value": None}],
        [{"name": "none", "value": 1}],
        [{"name": "link", "value": -1}],
        [{"name": "link", "value": "1"}],
        [link] * 8,
        [link | {"tool": 1}],
        [link | {"peer": "\x1b[2J"}],
        [1],
        [],
    ):
        document = json.dumps({"node": "n1", "measures": measures})
        yield f"text\nlattice-check {SECRET} {document}\n".encode()
    yield f"lattice-check {SECRET} {{}}\n".encode()


def try_one(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    for measures in read_output(text, SECRET).values():
        assert len(measures) <= len(MEASURES)
        for each in measures:
            assert each.name in MEASURES
            assert (each.value is None) is bool(each.reason)
            assert (each.tool + each.peer + each.reason).isprintable()
    assert read_output(text, "1e" * 16) == {} or "1e" * 16 in text
