"""A conversation about counters: questions in packets, answered until nobody asks."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.base import packet
from lattice.domain.counters import (
    IO,
    LATENCY,
    MOST_JOBS,
    NOT_BUILT,
    TOO_MUCH,
    BadTelling,
    CounterAnswer,
    CounterQuestion,
    CountersUnavailable,
    Rows,
    namespaces_of,
    processes_of,
    read_asking,
    read_telling,
    write_telling,
)
from lattice.helper.conversation import LONGEST_S, Conversation, NoValues
from lattice.helper.privilege import Kernel


class _Kernel(Kernel):
    def die_with_parent(self) -> None:
        """The parent is pytest."""


class Told:
    """A reader that tells, or fails as a test says."""

    def __init__(self, kind: str, rows: Rows | Exception) -> None:
        self.kinds = frozenset({kind})
        self._rows = rows
        self.closed = False
        self.unread: dict[int, str] = {}

    def read(self, wanted: Collection[str], jobs: Sequence[int]) -> Mapping[str, dict[int, Rows]]:
        if isinstance(self._rows, Exception):
            raise self._rows
        return {kind: {job: list(self._rows) for job in jobs} for kind in wanted}

    def close(self) -> None:
        self.closed = True


@contextmanager
def talking(*readers: Told, longest_s: float = 60.0) -> Iterator[tuple[socket.socket, Any]]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.settimeout(60)
    conversation = Conversation(readers, _Kernel(), longest_s=longest_s)
    thread = threading.Thread(target=conversation.hold, args=(theirs,))
    thread.start()
    with ours, theirs:
        yield ours, thread
        ours.shutdown(socket.SHUT_RDWR)
        thread.join(60)
        assert not thread.is_alive()


def ask(connection: socket.socket, want: Sequence[str], jobs: Sequence[int]) -> CounterAnswer:
    packet.send(connection, CounterQuestion(tuple(want), tuple(jobs)).written())
    telling = CounterAnswer()
    while read_telling(packet.receive(connection)[0], telling):
        continue
    return telling


@pytest.mark.spec("SRC-2")
def test_what_one_reader_can_not_tell_the_others_do() -> None:
    readers = [
        Told("good", [[1]]),
        Told("why", NoValues("no program")),
        Told("bad", ZeroDivisionError("x")),
    ]
    with talking(*readers) as (connection, _):
        for _ in range(2):
            telling = ask(connection, ["good", "why", "bad", LATENCY], [42, 43, 42])
            assert telling.of("good") == {42: [[1]], 43: [[1]]}
            assert telling.failed == {
                "why": "no program", "bad": "failed (ZeroDivisionError)", LATENCY: NOT_BUILT
            }  # fmt: skip
        with pytest.raises(CountersUnavailable, match="lattice-helper: no program"):
            telling.of("why")
    assert all(each.closed for each in readers)


def test_jobs_that_could_not_be_read_are_told_with_the_reason() -> None:
    reader = Told(IO, [[1, 2, 3]])
    reader.unread = {7: "it hangs"}
    with talking(reader) as (connection, _):
        assert ask(connection, [IO], [42]).unread == {7: "it hangs"}
        reader.unread = {}
        assert ask(connection, [IO], [42]).unread == {}


@pytest.mark.parametrize("unread", [[], {"x": "y"}, {"7": 1}, None])
def test_unread_jobs_that_are_none_are_refused(unread: object) -> None:
    raw = json.dumps({"told": {}, "failed": {}, "unread": unread, "more": False}).encode()
    with pytest.raises(BadTelling):
        read_telling(raw, CounterAnswer())


@pytest.mark.threat("counting-child")
@pytest.mark.parametrize(
    "raw",
    [
        b"x", b"{}", b"[]", b'{"want":[],"jobs":[1]}', b'{"want":["io"],"jobs":[]}',
        b'{"want":["io"],"jobs":[0]}', b'{"want":["io"],"jobs":[true]}',
        b'{"want":["io"],"jobs":[1],"pids":[1]}', b'{"want":[1],"jobs":[1]}',
        b'{"want":"io","jobs":[1]}', b"x" * (packet.LARGEST_BYTES + 1),
        json.dumps({"want": ["io"], "jobs": [1] * (MOST_JOBS + 1)}).encode(),
    ],
)  # fmt: skip
def test_an_odd_question_ends_it(raw: bytes) -> None:
    with talking(Told(IO, [])) as (connection, thread):
        connection.send(raw)
        thread.join(60)
        assert not thread.is_alive()
    if len(raw) <= packet.LARGEST_BYTES:
        with pytest.raises(BadTelling):
            read_asking(raw)


@pytest.mark.threat("counting-child")
def test_it_is_over_after_its_time_whoever_still_asks() -> None:
    assert LONGEST_S <= 3600
    with talking(Told(IO, []), longest_s=0.05) as (_, thread):
        thread.join(60)
        assert not thread.is_alive()


def test_long_lists_come_in_packets_and_are_whole() -> None:
    rows = [[pid, 2**40 + pid, 1, *[2**50] * 4] for pid in range(2000)]
    with talking(Told(IO, rows)) as (connection, _):
        assert ask(connection, [IO], [42]).of(IO) == {42: rows}
        assert len(processes_of(rows)) == 2000


def test_what_is_too_much_is_said_and_the_rest_told() -> None:
    rows = [[2**60] * 7] * 50_000
    with talking(Told(IO, rows), Told("small", [[1]])) as (connection, _):
        telling = ask(connection, [IO, "small"], [42])
        assert telling.failed == {IO: TOO_MUCH}
        assert telling.of("small") == {42: [[1]]}


def test_a_single_row_that_fits_no_packet_is_too_much() -> None:
    with talking(Told("odd", ["x" * 100_000])) as (connection, _):
        assert ask(connection, ["odd"], [42]).failed == {"odd": TOO_MUCH}


tables = st.dictionaries(
    st.integers(1, 2**32),
    st.lists(st.lists(st.integers(0, 2**63), min_size=7, max_size=7), max_size=400),
    max_size=4,
)


@given(st.dictionaries(st.sampled_from(["io", "network", "x"]), tables, max_size=3))
def test_what_is_written_is_what_is_read(told: dict[str, dict[int, Rows]]) -> None:
    telling = CounterAnswer()
    packets = write_telling(CounterAnswer({kind: dict(table) for kind, table in told.items()}))
    assert [read_telling(each, telling) for each in packets] == [True] * (len(packets) - 1) + [
        False
    ]
    assert all(len(each) <= packet.LARGEST_BYTES for each in packets)
    assert telling.rows == told
    for kind in ("io", "network", "x"):
        if kind in told:
            assert telling.of(kind) == told[kind]
        else:
            with pytest.raises(CountersUnavailable, match="told nothing"):
                telling.of(kind)


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=12,
)


@given(st.lists(anything, max_size=4))
def test_rows_that_are_none_are_refused(rows: Rows) -> None:
    for of in (processes_of, namespaces_of):
        try:
            found = of(rows)
        except BadTelling:
            continue
        assert len(found) == len(rows)
        assert all(type(each) is list for each in rows)


@given(st.binary(max_size=100) | anything.map(lambda each: json.dumps(each).encode()))
def test_packets_that_are_none_are_refused(raw: bytes) -> None:
    for read in (read_asking, lambda each: read_telling(each, CounterAnswer())):
        with pytest.raises(BadTelling):
            read(raw)


@pytest.mark.parametrize(
    "raw",
    [b'{"want":["io"],"jobs":[1],"jobs":[2]}', '{"want":["io"],"jobs":[1]}'.encode("utf-16")],
    ids=["twice", "utf-16"],
)
def test_a_question_can_be_read_in_one_way(raw: bytes) -> None:
    with pytest.raises(BadTelling):
        read_asking(raw)


@pytest.mark.parametrize("row", [b"[NaN]", b'{"a":1,"a":2}', b"[1e999]"])
def test_an_answer_can_be_read_in_one_way(row: bytes) -> None:
    with pytest.raises(BadTelling):
        read_telling(b'{"told":{"io":{"1":[%s]}},"failed":{},"more":false}' % row, CounterAnswer())
