"""Streams over both doors of the SDK: each line once, over however many connections."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lattice.base.errors import InternalError, LoginRequired, NotFound, RateLimited, Unavailable
from lattice.client import Client, Settings, SyncClient
from lattice.client.record_stream import StreamReconnect
from lattice.client.tokens import FixedToken, TokenSource
from lattice.domain.logs import LogKind
from lattice.features.logs import operations
from lattice.features.logs.blocks import MEDIA_TYPE
from lattice.features.logs.model import LogBlock, LogNote, LogRecord, NoteKind
from tests.eventually import eventually
from tests.fakes import answers, logs
from tests.fakes.manual_clock import ManualClock
from tests.fakes.web import Answer, Request, Web, web

STREAM = "/v1/allocations/42/logs/stream"
Take = Callable[..., list[LogRecord]]


def blocking(
    settings: Settings, tokens: TokenSource | None = None, **named: Any
) -> list[LogRecord]:
    with SyncClient(settings, tokens=tokens or FixedToken("t0k3n"), environment={}) as client:
        call = operations.stream_logs("42", **named)
        with client.stream(call, sleep=lambda _: None) as found:
            return list(found)


def asynchronous(
    settings: Settings, tokens: TokenSource | None = None, **named: Any
) -> list[LogRecord]:
    async def run() -> list[LogRecord]:
        async with Client(settings, tokens=tokens or FixedToken("t0k3n"), environment={}) as client:
            call = operations.stream_logs("42", **named)
            async with client.stream(call, sleep=_no_pause) as found:
                return [record async for record in found]

    return asyncio.run(run())


async def _no_pause(_: float) -> None:
    await asyncio.sleep(0)


@pytest.fixture(params=[blocking, asynchronous], ids=["blocking", "async"])
def take(request: pytest.FixtureRequest) -> Take:
    found: Take = request.param
    return found


@pytest.fixture
def server() -> Iterator[Web]:
    with web({}) as running:
        yield running


def at(*servers: Web) -> Settings:
    return Settings(tuple(each.url for each in servers))


def in_turn(turns: list[Any]) -> Callable[[Request], Answer]:
    """Each connection is answered by the next of them."""

    def answer(request: Request) -> Answer:
        found: Answer = turns.pop(0)(request)
        return found

    return answer


def text(records: list[LogRecord]) -> str:
    return "".join(each.text for each in records if isinstance(each, LogBlock))


def kinds(records: list[LogRecord]) -> list[NoteKind]:
    return [each.kind for each in records if isinstance(each, LogNote)]


NOW = datetime(2026, 11, 15, 14, 2, tzinfo=UTC)
BLOCK: dict[str, Any] = {
    "node": "n1",
    "stream": LogKind.STDOUT,
    "source": "batch",
    "seq": 0,
    "offset": 0,
    "time": NOW,
}
LINES = [logs.block(f"line {n}\n", n) for n in range(6)]
WHOLE = "".join(f"line {n}\n" for n in range(6))


@pytest.mark.spec("CLI-3", "LOG-4")
def test_a_stream_from_beginning_to_end(take: Take, server: Web) -> None:
    server.routes[STREAM] = logs.serving([*LINES, logs.gap(), logs.note("end", words="completed")])
    records = take(at(server), follow=True, nodes=("n1", "n2"), ranks=(3,), tail=0, grep="a b")
    assert text(records) == WHOLE
    assert kinds(records) == [NoteKind.END]
    (request,) = server.requests
    assert request.headers["accept"] == f"{MEDIA_TYPE};zstd=1, text/event-stream"
    assert request.headers["authorization"] == "Bearer t0k3n"
    assert request.query == {
        "node": ["n1", "n2"],
        "rank": ["3"],
        "tail": ["0"],
        "grep": ["a b"],
        "follow": ["true"],
    }


@pytest.mark.spec("CLI-3", "LOG-4")
@pytest.mark.parametrize("every", [1, 4, 100])
def test_a_cut_connection_goes_on_where_it_was(take: Take, server: Web, every: int) -> None:
    """Also between two ids: what comes again below the last number is dropped."""
    server.routes[STREAM] = logs.serving(LINES, every=every, cuts=(2, 3, 5))
    records = take(at(server), tail=100)
    assert text(records) == WHOLE
    told = kinds(records)
    assert told == [NoteKind.DISCONNECTED, NoteKind.RECONNECTED] * 3
    back = [each for each in records if isinstance(each, LogNote) and each.seconds is not None]
    assert len(back) == 3, "each says how long it took"
    if every == 1:
        assert "tail" not in server.requests[1].query, "a cursor says where to begin"


@pytest.mark.spec("LOG-4")
def test_a_replica_that_dies_is_replaced_by_another(take: Take, server: Web) -> None:
    server.routes[STREAM] = logs.serving(LINES)
    with web({STREAM: logs.serving(LINES, cuts=(3,))}) as first:
        records = take(at(first, server), follow=True)
        assert text(records) == WHOLE
        assert len(first.requests) == 1
    assert server.requests[0].query["cursor"] == ["3"]


@pytest.mark.spec("LOG-4")
def test_a_server_that_refuses_for_a_while_is_asked_again(take: Take, server: Web) -> None:
    good = logs.serving(LINES, cuts=(3,))
    busy = Answer(answers.refusal("unavailable", "Slurm does not answer."), 503)
    limited = Answer(answers.refusal("rate_limited", "Too many."), 429, {"Retry-After": "1"})
    turns = [good, lambda _: busy, lambda _: limited, good]
    server.routes[STREAM] = in_turn(turns)
    assert text(take(at(server))) == WHOLE


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (Answer(answers.refusal("unavailable", "Down."), 503), Unavailable),
        (Answer(answers.refusal("not_found", "No."), 404), NotFound),
        (Answer(answers.refusal("rate_limited", "Too many."), 429), RateLimited),
        (Answer(b"<html>", 404), Unavailable),
    ],
)
def test_a_refusal_at_the_beginning_is_the_answer(
    take: Take, server: Web, answer: Answer, kind: type[Exception]
) -> None:
    server.routes[STREAM] = answer
    with pytest.raises(kind):
        take(at(server))
    assert len(server.requests) == 1


def test_what_is_no_longer_there_is_said(take: Take, server: Web) -> None:
    turns: list[Any] = [
        logs.serving(LINES, cuts=(3,)),
        lambda _: Answer(answers.refusal("not_found", "Gone."), 404),
    ]
    server.routes[STREAM] = in_turn(turns)
    with pytest.raises(NotFound):
        take(at(server))


def test_an_error_in_the_stream(take: Take, server: Web) -> None:
    first = [logs.event(LINES[0], "1")]
    turns: list[Any] = [
        lambda _: logs.streamed([*first, logs.error_event("unavailable", "Going down.")]),
        lambda _: logs.streamed([logs.error_event("internal", "Defect.")]),
    ]
    server.routes[STREAM] = in_turn(turns)
    with pytest.raises(InternalError, match="Defect"):
        take(at(server))
    assert turns == []


class Renewing:
    """The first token holds for a while, then the second."""

    def __init__(self) -> None:
        self.now: str = "old"

    def token(self) -> str:
        return self.now

    def renewed(self, refused: str) -> str | None:
        if refused != "old":
            return None
        self.now = "new"
        return self.now


@pytest.mark.spec("AUTH-8")
def test_a_token_that_ends_is_renewed_in_silence(take: Take, server: Web) -> None:
    good = logs.serving(LINES)

    def answer(request: Request) -> Answer:
        if request.headers["authorization"] == "Bearer new":
            return good(request)
        if "cursor" not in request.query:
            ended = logs.error_event("login_required", "Your token has ended.")
            return logs.streamed([logs.event(LINES[0], "1"), ended])
        return Answer(answers.refusal("login_required", "No."), 401)

    server.routes[STREAM] = answer
    records = take(at(server), Renewing())
    assert text(records) == WHOLE
    assert kinds(records) == []


@pytest.mark.spec("AUTH-8")
def test_a_token_that_can_not_be_renewed_ends_it(take: Take, server: Web) -> None:
    ended = logs.error_event("login_required", "Your token has ended.")
    server.routes[STREAM] = lambda _: logs.streamed([logs.event(LINES[0], "1"), ended])
    with pytest.raises(LoginRequired):
        take(at(server))
    with pytest.raises(LoginRequired):
        take(at(server), Renewing())


@pytest.mark.spec("LOG-4", "LOG-7")
def test_silence_is_a_lost_connection(server: Web) -> None:
    over = threading.Event()

    def silent() -> Iterator[bytes]:
        yield logs.event(LINES[0], "1")
        over.wait(120)

    turns: list[Any] = [lambda _: logs.streamed(silent()), logs.serving(LINES)]
    server.routes[STREAM] = in_turn(turns)
    call = operations.stream_logs("42")
    with SyncClient(at(server), tokens=FixedToken("t"), environment={}) as client:
        records = list(client.stream(call._replace(silence_s=1.0)))
    over.set()
    assert text(records) == WHOLE
    assert kinds(records) == [NoteKind.DISCONNECTED, NoteKind.RECONNECTED]


@pytest.mark.spec("LOG-7")
def test_signs_of_life_reach_who_asks_for_them(take: Take, server: Web) -> None:
    alive = logs.event(logs.note("alive"))
    server.routes[STREAM] = lambda _: logs.streamed([logs.ALIVE, alive, logs.END])
    assert take(at(server)) == []
    heard = take(at(server), signs_of_life=True)
    assert [each.words for each in heard if isinstance(each, LogNote)] == ["the server answers", ""]


def test_what_can_not_be_read_is_said(take: Take, server: Web) -> None:
    server.routes[STREAM] = lambda _: logs.streamed([b"event: lines\ndata: {}\n\n"])
    with pytest.raises(InternalError, match="can't read"):
        take(at(server))
    server.routes[STREAM] = lambda _: logs.streamed([b"event: novel\ndata: x\n\n", logs.END])
    assert take(at(server)) == [], "a newer server may say more"


@pytest.mark.spec("LOG-4")
def test_the_cursor_follows_what_was_taken(server: Web) -> None:
    server.routes[STREAM] = lambda _: logs.streamed([b"".join(logs.events(LINES)), logs.END])
    with SyncClient(at(server), tokens=FixedToken("t"), environment={}) as client:
        found = client.logs("42")
        assert found.cursor == ""
        next(found)
        next(found)
        assert found.cursor == "1", "the second may not have been shown"
        found.close()
        rest = client.logs("42", cursor=found.cursor)
        next(rest)
        assert server.requests[-1].query["cursor"] == ["1"]
        rest.close()


def test_a_caller_that_leaves_hangs_up(server: Web) -> None:
    gone = []

    def forever() -> Iterator[bytes]:
        try:
            while True:
                yield logs.ALIVE * 5000
        finally:
            gone.append(True)

    server.routes[STREAM] = lambda _: logs.streamed(forever())
    client = SyncClient(at(server), tokens=FixedToken("t"), environment={})
    with client.logs("42", signs_of_life=True) as found:
        next(found)
    eventually(lambda: gone)


def course(clock: ManualClock, **named: Any) -> StreamReconnect[LogRecord]:
    return StreamReconnect(operations.stream_logs("42", **named), replicas=2, clock=clock)


def test_servers_that_go_just_before_it_begins_are_waited_for() -> None:
    """Who followed a job that had not started was answered a moment before."""
    clock = ManualClock()
    call = operations.stream_logs("42", follow=True)
    one = StreamReconnect(call._replace(answered=True), replicas=2, clock=clock)
    assert len(list(one.lost("refused", "u"))) == 1, "it is told"
    for _ in range(20):
        clock.advance(max(one.pause_s, 0.01))
        assert list(one.lost("refused", "u")) == []
    with pytest.raises(NotFound):
        one.refused(NotFound("No."))
    typed_wrong = StreamReconnect(call, replicas=2, clock=clock)
    assert list(typed_wrong.lost("refused", "u")) == []
    with pytest.raises(Unavailable):
        typed_wrong.lost("refused", "u")


def test_patience_has_an_end() -> None:
    clock = ManualClock()
    one = course(clock, follow=True)
    one.opened()
    list(one.feed(logs.event(LINES[0], "1"), "u"))
    assert len(list(one.lost("reset", "u"))) == 1
    pauses: list[float] = []

    def on_and_on() -> None:
        while True:
            clock.advance(max(one.pause_s, 0.01))
            pauses.append(one.pause_s)
            assert list(one.lost("reset", "u")) == [], "it is told once"

    with pytest.raises(Unavailable, match="reset"):
        on_and_on()
    assert sum(pauses) > 890
    assert max(pauses) <= 3.0
    assert pauses[0] == 0.0, "the first try is at once"


def test_a_server_that_closes_at_once_is_not_asked_in_a_hurry() -> None:
    clock = ManualClock()
    one = course(clock, follow=True)
    for _ in range(10):
        one.opened()
        list(one.feed(logs.ALIVE, "u"))
        list(one.lost("closed", "u"))
    assert one.pause_s >= 2.0
    one.opened()
    clock.advance(6)
    list(one.feed(logs.ALIVE, "u"))
    list(one.lost("closed", "u"))
    assert one.pause_s == 0.0, "one that held is begun anew at once"


@pytest.mark.spec("LOG-4")
@settings(suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_cuts_give_each_line_once_and_in_order(data: st.DataObject) -> None:
    """The law of LOG-4, on streams of two nodes that are cut anywhere, within events too."""
    counts = data.draw(
        st.lists(st.tuples(st.sampled_from(["n1", "n2"]), st.integers(1, 4)), max_size=12)
    )
    numbers = {"n1": 0, "n2": 0}
    records = []
    for node, count in counts:
        seq = numbers[node]
        lines = "".join(f"{node} {seq + n}\n" for n in range(count))
        records.append(logs.block(lines, seq, node=node))
        numbers[node] += count
    every = data.draw(st.integers(1, 5))
    one = course(ManualClock())
    taken: list[LogRecord] = []
    cuts = data.draw(st.lists(st.floats(0, 1), max_size=6))
    step = data.draw(st.sampled_from([3, 50, 1000]))
    while not one.ended:
        begin = int(dict(one.request.params).get("cursor", "0"))
        body = b"".join([*list(logs.events(records, every=every))[begin:], logs.END])
        end = int(len(body) * cuts.pop()) if cuts else len(body)
        one.opened()
        for at in range(0, end, step):
            taken += one.feed(body[at : min(at + step, end)], "u")
        if not one.ended:
            list(one.lost("cut", "u"))
    for node, count in numbers.items():
        found = "".join(
            each.text for each in taken if isinstance(each, LogBlock) and each.node == node
        )
        assert found == "".join(f"{node} {n}\n" for n in range(count))


async def test_what_a_server_sends_is_what_a_client_reads() -> None:
    from lattice.wire.events import EventStream

    async def told() -> AsyncIterator[tuple[LogRecord, str]]:
        yield LogBlock(**BLOCK, text="a\r日\x1b\u2028\n", count=1), ""
        yield LogNote(kind=NoteKind.ALIVE, time=NOW), "c-1"

    async def fine() -> None:
        pass

    body: list[bytes] = []

    async def send(message: Any) -> None:
        body.append(message.get("body", b""))

    await EventStream(told(), "r-1", fine, lambda _: None).stream_response(send)
    one = course(ManualClock())
    one.opened()
    taken = [each for piece in body for each in one.feed(piece, "u")]
    assert text(taken) == "a\r日\x1b\u2028\n"
    assert (one.cursor, one.ended) == ("c-1", True)


def asked(settings: Settings, verb: str, door: str, **named: Any) -> Any:
    """A verb of one of the doors; bytes are gathered."""

    async def run() -> Any:
        async with Client(settings, tokens=FixedToken("t"), environment={}) as client:
            found = getattr(client, verb)("42", **named)
            if verb == "log_bytes":
                return b"".join([piece async for piece in found]), found.end
            return await found

    if door == "async":
        return asyncio.run(run())
    with SyncClient(settings, tokens=FixedToken("t"), environment={}) as client:
        found = getattr(client, verb)("42", **named)
        return (b"".join(found), found.end) if verb == "log_bytes" else found


@pytest.mark.spec("CLI-3", "LOG-6")
@pytest.mark.parametrize("door", ["blocking", "async"])
def test_pages_streams_and_bytes(server: Web, door: str) -> None:
    page = {"allocation": "42", "attempt": 1, "attempts": 1, "records": [LINES[0], logs.gap()]}
    raw = Answer(pieces=[b"hel", b"lo"], headers={"Lattice-End-Offset": "9"})
    server.routes |= {
        "/v1/allocations/42/logs": page | {"cursor": "c"},
        "/v1/allocations/42/logs/streams": logs.streams(attempt=2),
        "/v1/allocations/42/logs/raw": raw,
    }
    found = asked(at(server), "read_logs", door, since=NOW, limit=1, offset=0, stream="stderr")
    assert (len(found.records), found.cursor) == (2, "c")
    assert server.requests[-1].query == {
        "since": ["2026-11-15T14:02:00+00:00"],
        "limit": ["1"],
        "offset": ["0"],
        "stream": ["stderr"],
    }
    assert asked(at(server), "log_streams", door, attempt=2).streams[0].node == "n1"
    assert asked(at(server), "log_bytes", door, node="n1", offset=4) == (b"hello", 9)
    assert server.requests[-1].query["offset"] == ["4"]


@pytest.mark.parametrize("door", ["blocking", "async"])
def test_bytes_that_may_not_be_had(server: Web, door: str) -> None:
    server.routes["*"] = Answer(answers.refusal("not_found", "No."), 404)
    with pytest.raises(NotFound):
        asked(at(server), "log_bytes", door, node="n1")
    server.routes["*"] = Answer(answers.refusal("login_required", "No."), 401)
    with pytest.raises(LoginRequired):
        asked(at(server), "log_bytes", door, node="n1")
