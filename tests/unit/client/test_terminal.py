"""A terminal's link over its connections, and the SDK's object around it, on real sockets."""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable
from contextlib import closing

import pytest

from lattice.base.errors import (
    InternalError,
    JobEnded,
    LatticeError,
    LoginRequired,
    NotFound,
    PermissionRefused,
    Unavailable,
)
from lattice.client import Client, Settings, SyncClient
from lattice.client.outcome import exit_code
from lattice.client.terminal import Back, ConnectionLost, TerminalLink
from lattice.client.tokens import FixedToken, TokenSource
from lattice.domain.terminal import (
    EndCause,
    Errors,
    Exit,
    Output,
    Resize,
    Signal,
    Started,
    Stdin,
    StdinEnd,
    TerminalMessage,
    TerminalSignal,
)
from lattice.features.attach import model
from lattice.features.attach.model import Ended, EndReason, Notice, NoticeKind, Opened
from lattice.features.attach.terminal_call import (
    LARGEST_MESSAGE_BYTES,
    PROTOCOL,
    attach,
    start_text,
)
from tests.fakes.attach_server import AttachServer, FarEnd, attach_server
from tests.fakes.manual_clock import ManualClock


class Renewing:
    """Tokens of which there is always another."""

    def __init__(self) -> None:
        self.number = 1

    def token(self) -> str | None:
        return f"token-{self.number}"

    def renewed(self, refused: str) -> str | None:
        assert refused == f"token-{self.number}"
        self.number += 1
        return self.token()


def client(*servers: AttachServer | str, tokens: TokenSource | None = None) -> SyncClient:
    urls = tuple(each if isinstance(each, str) else each.url for each in servers)
    return SyncClient(Settings(urls), tokens=tokens or FixedToken("t0k3n"), environment={})


def link_to(
    *servers: AttachServer | str,
    clock: ManualClock | None = None,
    tokens: TokenSource | None = None,
) -> TerminalLink:
    call = attach("42", command=("sh",))
    clock = clock or ManualClock()
    return TerminalLink(call, client(*servers, tokens=tokens).dialler(call, clock=clock), clock)


def drive(
    link: TerminalLink, holds: Callable[[], object], taken: list[TerminalMessage] | None = None
) -> list[TerminalMessage]:
    """Turns until it holds; what was taken meanwhile. The clock stands still."""
    taken = [] if taken is None else taken
    for _ in range(2000):
        while (message := link.take()) is not None:
            taken.append(message)
        if holds():
            return taken
        select.select(link.reading, link.writing, [], 0.02)
        link.turn()
    raise AssertionError("it never came to hold")


def opened(server: AttachServer, **named: object) -> TerminalLink:
    link = link_to(server, **named)  # type: ignore[arg-type]
    link.open()
    drive(link, lambda: link.events and server.far_end.pipe._met)
    assert isinstance(link.events.popleft(), Opened)
    return link


def echo(far: FarEnd, message: TerminalMessage) -> None:
    if isinstance(message, Stdin):
        far.say(Output(message.text), Errors(b"!"))
    elif isinstance(message, StdinEnd):
        far.say(Exit(cause=EndCause.EXITED, code=3), last=True)


def test_what_the_server_refuses_is_raised_at_once() -> None:
    with attach_server() as server:
        server.refusals = [(404, {"code": "not_found", "message": "not there", "hint": "h"})]
        with closing(link_to(server)) as link, pytest.raises(NotFound, match="not there"):
            link.open()
    assert server.starts == []


def test_a_refused_token_is_renewed_once() -> None:
    error = {"code": "login_required", "message": "expired"}
    with attach_server() as server:
        server.refusals = [(401, error)]
        with closing(opened(server, tokens=Renewing())):
            pass
        assert [each["authorization"] for each in server.headers] == [
            "Bearer token-1",
            "Bearer token-2",
        ]
        server.refusals = [(401, error)]
        with closing(link_to(server)) as link, pytest.raises(LoginRequired):
            link.open()


def test_without_any_server_it_is_unavailable() -> None:
    with closing(link_to("http://127.0.0.1:9")) as link, pytest.raises(Unavailable):
        link.open()


def test_something_else_than_a_websocket_is_refused() -> None:
    with attach_server() as server:
        server.refusals = [(200, {})]
        with closing(link_to(server)) as link, pytest.raises(Unavailable):
            link.open()


@pytest.mark.spec("ATTACH-4")
def test_it_goes_on_at_another_server_with_the_same_session() -> None:
    far = FarEnd(echo)
    with attach_server(far_end=far) as first, attach_server(far_end=far) as second:
        link = link_to(first, second)
        link.open()
        link.write(Stdin(b"a"))
        shown: list[TerminalMessage] = []
        drive(link, lambda: Output(b"a") in shown, shown)
        first.stop()
        drive(link, lambda: any(isinstance(each, ConnectionLost) for each in link.events))
        link.write(Stdin(b"b"))
        drive(link, lambda: len(far.heard) == 2 and Back(0.0) in link.events)
        link.close()
    assert [each.text for each in far.heard if isinstance(each, Stdin)] == [b"a", b"b"]
    assert second.starts[0]["resume"] is True
    assert second.starts[0]["session"] == first.starts[0]["session"]


@pytest.mark.spec("ATTACH-2", "ATTACH-4")
def test_it_says_it_is_there_and_notices_silence() -> None:
    clock = ManualClock()
    with attach_server() as server, closing(opened(server, clock=clock)) as link:
        clock.advance(5)
        drive(link, lambda: {"type": "keepalive"} in server.words)
        server.mute = True
        drive(link, lambda: not select.select(link.reading, [], [], 0.05)[0])
        clock.advance(15.1)
        link.turn()
        assert any(isinstance(each, ConnectionLost) for each in link.events)


@pytest.mark.spec("ATTACH-4")
def test_after_a_minute_it_gives_up() -> None:
    clock = ManualClock()
    with attach_server() as server:
        link = opened(server, clock=clock)
    drive(link, lambda: link.away_s is not None)
    assert link.end is None
    while link.end is None:
        clock.advance(3.1)
        drive(link, lambda: link._retry_at > clock.monotonic() or link.end)
    assert isinstance(link.end, Unavailable)
    assert 60 < (link.away_s or 0) < 70
    assert not link.writable
    link.close()


@pytest.mark.spec("ATTACH-4")
@pytest.mark.parametrize(
    ("status", "code", "final"),
    [
        (503, "unavailable", False),
        (429, "rate_limited", False),
        (404, "not_found", True),
        (401, "login_required", True),
    ],
)
def test_a_refusal_to_resume_is_final_unless_it_may_pass(
    status: int, code: str, final: bool
) -> None:
    clock = ManualClock()
    with attach_server() as server, closing(opened(server, clock=clock)) as link:
        drive(link, lambda: link._received)
        server.refusals = [(status, {"code": code, "message": "no"})]
        assert server.connection is not None
        server.connection.cut()
        drive(link, lambda: not server.refusals)
        if final:
            drive(link, lambda: link.end)
            kind = PermissionRefused if code == "login_required" else NotFound
            assert isinstance(link.end, kind)
        else:
            drive(link, lambda: link._tries == 2)
            clock.advance(5)
            drive(link, lambda: any(isinstance(each, Back) for each in link.events))


@pytest.mark.spec("AUTH-8")
def test_a_fresh_token_is_told_in_silence() -> None:
    clock, tokens = ManualClock(), Renewing()
    with attach_server() as server, closing(opened(server, clock=clock, tokens=tokens)) as link:
        tokens.number = 7
        clock.advance(5)
        link.turn()
        clock.advance(10.5)
        drive(link, lambda: {"type": "token", "token": "token-7"} in server.words)
        assert not link.events


@pytest.mark.spec("AUTH-8")
@pytest.mark.parametrize("renews", [True, False])
def test_a_warning_of_the_tokens_end_is_shown_only_if_there_is_no_other(renews: bool) -> None:
    tokens: TokenSource = Renewing() if renews else FixedToken("fixed")
    with attach_server() as server, closing(opened(server, tokens=tokens)) as link:
        assert server.connection is not None
        server.connection.say(
            {"type": "notice", "kind": "token_expiring", "words": "60 s left"},
        )
        if renews:
            drive(link, lambda: {"type": "token", "token": "token-2"} in server.words)
            assert not link.events
        else:
            drive(link, lambda: link.events)
            assert link.events.popleft() == Notice(
                kind=NoticeKind.TOKEN_EXPIRING, words="60 s left"
            )


def test_the_last_words_count_though_the_connection_closes_behind_them() -> None:
    with attach_server() as server, closing(opened(server)) as link:
        server.far_end.say(Output(b"last"))
        assert server.connection is not None
        server.connection.say({"type": "ended", "reason": "preempted", "words": "w"})
        server.connection.cut()
        assert drive(link, lambda: link.end) == [Output(b"last")]
        assert link.end == Ended(reason=EndReason.PREEMPTED, words="w")


@pytest.mark.parametrize("noise", [b"\xff" * 30, b"", b"\x01" + bytes(16)])
def test_a_far_end_that_can_not_be_understood_ends_it(noise: bytes) -> None:
    with attach_server() as server, closing(opened(server)) as link:
        assert server.connection is not None
        server.connection.send(2, noise)
        drive(link, lambda: link.end)
        assert isinstance(link.end, InternalError)


@pytest.mark.parametrize(
    ("exit_", "end", "found"),
    [
        (Exit(cause=EndCause.EXITED, code=0), None, 0),
        (Exit(cause=EndCause.SIGNALLED, code=137), None, 137),
        (Exit(cause=EndCause.JOB_ENDED, code=137), Ended(reason=EndReason.JOB_ENDED), 137),
        (Exit(cause=EndCause.JOB_ENDED), None, JobEnded),
        (Exit(cause=EndCause.FAILED, words="w"), None, Unavailable),
        (Exit(cause=EndCause.CLIENT_LOST), None, Unavailable),
        (None, Ended(reason=EndReason.JOB_ENDED), JobEnded),
        (None, Ended(reason=EndReason.TOKEN_EXPIRED), PermissionRefused),
        (None, Ended(reason=EndReason.REFUSED), PermissionRefused),
        (None, NotFound("x"), NotFound),
        (None, None, Unavailable),
        *((None, Ended(reason=each), LatticeError) for each in EndReason),
    ],
)
def test_every_end_has_a_code_or_an_error(
    exit_: Exit | None, end: Ended | LatticeError | None, found: int | type[LatticeError]
) -> None:
    if isinstance(found, int):
        assert exit_code(exit_, end) == found
    else:
        with pytest.raises(found):
            exit_code(exit_, end)


@pytest.mark.spec("ATTACH-6")
@pytest.mark.parametrize("reason", [EndReason.PREEMPTED, EndReason.REQUEUED])
@pytest.mark.parametrize("words", ["", "[lattice] Allocation preempted."])
def test_of_a_job_that_was_taken_off_nobody_hears_that_it_goes_on(
    reason: EndReason, words: str
) -> None:
    with pytest.raises(Unavailable) as told:
        exit_code(None, Ended(reason=reason, words=words))
    assert "goes on" not in f"{told.value.message} {told.value.hint}"
    assert bool(told.value.hint) is not bool(words), "one of the two says what to do"


@pytest.mark.spec("ATTACH-2", "CLI-3")
def test_the_sdk_reads_writes_and_waits() -> None:
    with attach_server(echo) as server:
        with client(server).attach("42", command=["cat"]) as remote:
            remote.write(b"hello")
            assert remote.read(10) == b"hello"
            assert remote.read_errors(10) == b"!"
            assert remote.opened is not None
            assert remote.opened.node == "n1"
            remote.resize(40, 100)
            remote.signal("INT")
            with pytest.raises(TimeoutError):
                remote.read(0.01)
            remote.write_eof()
            assert remote.wait(10) == 3
            assert remote.read() == b""
        heard = server.far_end.heard
    assert heard[1:3] == [Resize(40, 100), Signal(TerminalSignal.INT)]
    assert server.starts[0]["terminal"] == ""
    assert server.starts[0]["command"] == ["cat"]


@pytest.mark.spec("ATTACH-2", "CLI-3")
def test_the_asynchronous_sdk_reads_writes_and_waits_at_once() -> None:
    async def use(url: str) -> list[bytes]:
        async with (
            Client(Settings((url,)), tokens=FixedToken("t"), environment={}) as cluster,
            cluster.attach("42", command=["cat"]) as remote,
        ):
            reading = asyncio.create_task(remote.read())
            await remote.write(b"hello")
            found = [await reading, await remote.read_errors()]
            assert remote.opened is not None
            await remote.resize(40, 100)
            await remote.signal("INT")
            await remote.write_eof()
            assert await remote.wait() == 3
            return [*found, await remote.read()]

    with attach_server(echo) as server:
        assert asyncio.run(use(server.url)) == [b"hello", b"!", b""]
        assert server.far_end.heard[1:3] == [Resize(40, 100), Signal(TerminalSignal.INT)]


@pytest.mark.spec("CLI-3")
def test_leaving_the_sdks_block_hangs_up() -> None:
    def hang_up(far: FarEnd, message: TerminalMessage) -> None:
        if message == Signal(TerminalSignal.HUP):
            far.say(Exit(cause=EndCause.SIGNALLED, code=129), last=True)

    with attach_server(hang_up) as server:
        with client(server).attach("42", terminal="xterm") as remote:
            server.far_end.say(
                Started(node="n1", user="a", step="0", pid=1, directory="/", accounted=True)
            )
            with pytest.raises(TimeoutError):
                remote.read(0.05)
            assert remote.started is not None
        assert Signal(TerminalSignal.HUP) in server.far_end.heard


def test_much_is_passed_on_in_bounded_memory() -> None:
    block = bytes(range(256)) * 128
    sent = 400

    def flood(far: FarEnd, message: TerminalMessage) -> None:
        """Not from the reader's own thread: it must be able to hear of room."""

    with attach_server(flood) as server, client(server).attach("42") as remote:
        import threading

        def say() -> None:
            server.far_end.say(*(Output(block) for _ in range(sent)))
            server.far_end.say(Exit(cause=EndCause.EXITED, code=0), last=True)

        thread = threading.Thread(target=say)
        thread.start()
        size, most = 0, 0
        while piece := remote.read(30):
            assert piece[:256] == block[:256]
            size += len(piece)
            most = max(most, len(remote._link._pipe._inbox))
        thread.join()
        assert size == sent * len(block)
        assert most * len(block) <= 3 * 1024 * 1024


def test_the_light_words_are_the_models() -> None:
    call = attach("42_7", rank=3, command=("a", "b"), tools="/t")
    assert call.path == "/v1/allocations/42_7/attach"
    text = start_text(call, "5e", resume=True, node="n1", terminal="vt100", size=(10, 20))
    assert model.read_client_word(text) == model.Start(
        session="5e",
        resume=True,
        node="n1",
        rank=3,
        command=("a", "b"),
        terminal="vt100",
        rows=10,
        columns=20,
        tools="/t",
    )
    assert (PROTOCOL, LARGEST_MESSAGE_BYTES) == (model.PROTOCOL, model.LARGEST_MESSAGE_BYTES)
