from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lattice.base.fast_start.decode import BadAnswer, decode, reader
from lattice.domain.allocation import Allocation
from lattice.features.allocations.model import AllocationCard, AllocationList
from lattice.features.identity.model import AuthDiscovery, Identity
from lattice.features.logs.model import LogBlock, LogPage
from lattice.features.nodes.model import NodeCard, NodeList
from tests.fakes import answers

ANSWERS: list[tuple[Any, Any]] = [
    (
        AllocationList,
        answers.listing(answers.allocation(), answers.pending(), answers.task(1, "failed")),
    ),
    (AllocationCard, answers.card(answers.allocation(), earlier=["1@2"])),
    (NodeList, {"nodes": [answers.node()], "sources": [answers.OK]}),
    (NodeCard, {"node": answers.node(), "sources": [], "allocations": ["1"]}),
    (Identity, answers.IDENTITY),
    (AuthDiscovery, {"idp_url": "a", "client_id": "b", "issuer": "c"}),
]

moments = st.integers(86400, 4_000_000_000).map(lambda when: datetime.fromtimestamp(when, UTC))
st.register_type_strategy(datetime, moments)
st.register_type_strategy(float, st.floats(allow_nan=False, allow_infinity=False))


@pytest.mark.spec("CLI-3")
@pytest.mark.parametrize(("kind", "document"), ANSWERS)
def test_reads_what_msgspec_reads(kind: Any, document: Any) -> None:
    body = json.dumps(document).encode()
    assert decode(body, kind) == msgspec.json.decode(body, type=kind)


@pytest.mark.parametrize("kind", [Allocation, NodeCard, Identity, AuthDiscovery])
@settings(suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_round_trip_of_any_answer(kind: Any, data: st.DataObject) -> None:
    answer = data.draw(st.from_type(kind))
    assert decode(msgspec.json.encode(answer), kind) == answer


def spoiled(document: Any) -> st.SearchStrategy[Any]:
    """The same document with one value replaced by something else, or taken out."""
    odd: st.SearchStrategy[Any] = st.sampled_from(
        [None, 1, 1.5, True, "x", [], {}, -1, "2026-11-15", [None]]
    )

    @st.composite
    def spoil(draw: st.DrawFn, value: Any = document) -> Any:
        if isinstance(value, dict) and value and draw(st.integers(0, 3)):
            key = draw(st.sampled_from(sorted(value)))
            rest = {name: each for name, each in value.items() if name != key}
            return rest if draw(st.integers(0, 4)) == 0 else rest | {key: draw(spoil(value[key]))}
        if isinstance(value, list) and value and draw(st.booleans()):
            return [draw(spoil(value[0])), *value[1:]]
        return draw(odd)

    return spoil()


@pytest.mark.parametrize(("kind", "document"), ANSWERS)
@given(data=st.data())
def test_refuses_what_msgspec_refuses(kind: Any, document: Any, data: st.DataObject) -> None:
    body = json.dumps(data.draw(spoiled(document))).encode()
    try:
        expected = msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError:
        with pytest.raises(BadAnswer):
            decode(body, kind)
        return
    assert decode(body, kind) == expected


@pytest.mark.parametrize(
    ("document", "said"),
    [
        (b"", "not a JSON document"),
        (b"[" * 100_000, "not a JSON document"),
        (b"\xff", "not a JSON document"),
        (b"[]", r"^\$: expected an object, found list$"),
        (b'{"nodes": []}', r"^\$: sources is missing$"),
        (b'{"nodes": [7], "sources": []}', r"^\$\.nodes\[0\]: expected an object, found int$"),
    ],
)
def test_errors_name_the_place(document: bytes, said: str) -> None:
    with pytest.raises(BadAnswer, match=said):
        decode(document, NodeList)


@pytest.mark.parametrize(
    ("record", "where"),
    [
        ({"type": "novel"}, r"\$\.records\[0\]\.type: 'novel' is none of lines, gap, note"),
        ({}, r"\$\.records\[0\]\.type: 'None' is none of"),
        (3, r"\$\.records\[0\]: expected an object"),
        ({"type": "note", "kind": "end"}, r"\$\.records\[0\]: time is missing"),
    ],
)
def test_records_are_told_apart_by_their_type(record: Any, where: str) -> None:
    page = {"allocation": "42", "attempt": 1, "attempts": 1, "records": [record]}
    with pytest.raises(BadAnswer, match=where):
        decode(json.dumps(page).encode(), LogPage)


def test_a_flood_is_read_as_the_first_of_it() -> None:
    read = reader(LogBlock)
    texts = ["x" * 100_000 + "\n", "é\u2028\x1b[31m\n", "\\ud800\n"] * 4
    for text in texts:
        document = {
            "type": "lines",
            "node": "n1",
            "stream": "stdout",
            "source": "batch",
            "seq": 0,
            "count": 1,
            "offset": 0,
            "time": "2026-11-15T14:02:00Z",
            "text": text,
        }
        assert read(json.dumps(document).encode()).text == text
    lone = json.dumps({**document, "text": "\ud800"}).encode()
    assert read(lone).text == "\ud800", "what the quicker parser refuses is read as before"
    with pytest.raises(BadAnswer):
        read(b"{")
