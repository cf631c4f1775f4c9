"""One of two replicas is dead: every call succeeds at the other, and every act happens once."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import trustme

from lattice.base.call import BytesCall, TerminalCall
from lattice.base.clock import SystemClock
from lattice.base.errors import Unavailable, status_of
from lattice.base.fast_start.http1 import HttpTarget
from lattice.client import Client, Settings, SyncClient, async_client
from lattice.client.tokens import FixedToken
from lattice.features.agents import operations as agents
from lattice.features.logs import operations as logs_operations
from lattice.features.nodes import operations as nodes
from lattice.features.sharing import operations as sharing
from lattice.features.submit import operations as submit
from lattice.features.submit.model import SubmitRequest
from lattice.features.telemetry import operations as telemetry
from tests.eventually import PATIENCE_S
from tests.fakes import answers, logs
from tests.fakes.attach_server import FarEnd, attach_server
from tests.fakes.silent_server import frozen, refusing, unanswering
from tests.fakes.web import Answer, Request, Web, web

Do = Callable[..., Any]
ASKED = SubmitRequest(script="#!/bin/sh\ntrue\n")
COMMENTED = SubmitRequest(script="#!/bin/sh\n#SBATCH --comment=mine\n")
SHARING = {"allocation": "42@1", "shares": [], "readers": []}
HUNG_UP = Answer(raw=b"")
CUT_SHORT = Answer(raw=b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")


CALLER: dict[str, Any] = {"tokens": FixedToken("t"), "environment": {}, "timeout_s": PATIENCE_S}


def blocking(settings: Settings, *calls: Any) -> Any:
    with SyncClient(settings, **CALLER) as client:
        return [client.call(each) for each in calls][-1]


def asynchronous(settings: Settings, *calls: Any) -> Any:
    async def run() -> Any:
        async with Client(settings, **CALLER) as client:
            return [await client.call(each) for each in calls][-1]

    return asyncio.run(run())


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a living replica may take longer to connect than a person would wait."""
    monkeypatch.setattr(async_client, "CONNECT_S", PATIENCE_S)
    defaults = HttpTarget.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "connect_timeout_s", PATIENCE_S)


@pytest.fixture(params=[blocking, asynchronous], ids=["blocking", "async"])
def do(request: pytest.FixtureRequest) -> Do:
    found: Do = request.param
    return found


@pytest.fixture
def alive() -> Iterator[Web]:
    routes: dict[str, Any] = {
        "/v1/auth/whoami": answers.IDENTITY,
        "/v1/allocations": {"id": "12", "job_id": 12},
        "/v1/allocations/42/cancel": {"id": "42", "cancelling": True, "state": "running"},
        "/v1/allocations/42/share": SHARING,
        "/v1/allocations/42/unshare": SHARING,
        "/v1/allocations/42/telemetry": {"allocation": "42", "mode": "debug", "interval_s": 1.0},
        "/v1/nodes/n1/drain": {"nodes": []},
        "/v1/agents/n1/revoke": {"node": "n1"},
        "/v1/agents/n1/restore": {"node": "n1"},
        "/v1/agents/enrolments": {"node": "n1", "token": "t", "expires": "2026-11-15T15:02:11Z"},
    }
    with web(routes) as running:
        yield running


ACTS: dict[str, Callable[[], Any]] = {
    "submit": lambda: submit.submit_allocation(ASKED),
    "cancel": lambda: submit.cancel_allocation("42"),
    "share": lambda: sharing.share_allocation("42", "bob"),
    "unshare": lambda: sharing.unshare_allocation("42", "bob"),
    "telemetry": lambda: telemetry.set_telemetry("42", "debug"),
    "drain": lambda: nodes.operate_node("drain", "n1", reason="why"),
    "revoke": lambda: agents.revoke_agent("n1", "stolen"),
    "restore": lambda: agents.restore_agent("n1"),
    "enrol": lambda: agents.create_enrolment("n1"),
}


def whoami() -> Any:
    from lattice.features.identity import operations

    return operations.whoami()


def dead(kind: str) -> AbstractContextManager[str]:
    return unanswering() if kind == "silent" else nullcontext(refusing())


@pytest.mark.spec("CLI-3", "OPS-1")
@pytest.mark.parametrize("act", ["whoami", *ACTS])
@pytest.mark.parametrize("first", [True, False], ids=["first", "second"])
def test_an_act_succeeds_where_one_replica_refuses(
    do: Do, alive: Web, act: str, first: bool
) -> None:
    urls = (refusing(), alive.url) if first else (alive.url, refusing())
    do(Settings(urls), ACTS.get(act, whoami)())
    assert len(alive.requests) == 1, "once"
    assert "lattice-repeated" not in alive.requests[0].headers, "nothing was sent before"


@pytest.mark.spec("CLI-3", "OPS-1")
@pytest.mark.parametrize("act", ["whoami", "submit", "unshare"])
def test_an_act_succeeds_where_a_host_drops_every_packet(do: Do, alive: Web, act: str) -> None:
    with unanswering() as gone:
        call = ACTS.get(act, whoami)()
        do(Settings((gone, alive.url)), call, call)
    assert len(alive.requests) == 2


@pytest.mark.spec("OPS-1")
def test_a_frozen_replica_does_not_get_as_far_as_tls(do: Do) -> None:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    with (
        authority.cert_pem.tempfile() as ca,
        frozen() as first,
        web({"*": answers.IDENTITY}, context=context) as second,
    ):
        assert do(Settings((first, second.url), ca=ca), whoami()).sub == "u-1"


@pytest.mark.spec("OPS-1")
@pytest.mark.parametrize("death", [HUNG_UP, CUT_SHORT], ids=["hung-up", "cut-short"])
@pytest.mark.parametrize("act", list(ACTS))
def test_an_act_is_repeated_where_a_replica_dies_before_it_answered(
    do: Do, alive: Web, act: str, death: Answer
) -> None:
    with web({"*": death}) as dying:
        do(Settings((dying.url, alive.url)), ACTS[act]())
    (lost,), (again,) = dying.requests, alive.requests
    assert again.body == lost.body
    assert "lattice-repeated" not in lost.headers
    assert again.headers["lattice-repeated"] == "true"


@pytest.mark.spec("ALLOC-3", "OPS-1")
def test_a_job_is_submitted_once_where_a_replica_dies_after_it(do: Do) -> None:
    jobs: dict[str, int] = {}

    def submitted(request: Request) -> int:
        return jobs.setdefault(request.headers["idempotency-key"], len(jobs) + 12)

    def die(request: Request) -> Answer:
        submitted(request)
        return HUNG_UP

    def answer(request: Request) -> dict[str, Any]:
        return {"id": str(submitted(request)), "job_id": submitted(request), "repeated": True}

    with web({"*": die}) as dying, web({"*": answer}) as alive:
        assert do(Settings((dying.url, alive.url)), submit.submit_allocation(ASKED)).job_id == 12
        assert do(Settings((dying.url, alive.url)), submit.submit_allocation(ASKED)).job_id == 13
    assert len(jobs) == 2, "each call has a key of its own"


@pytest.mark.spec("ALLOC-3")
def test_a_job_with_its_own_comment_fails_over_only_while_nothing_was_sent(
    do: Do, alive: Web
) -> None:
    call = submit.submit_allocation(COMMENTED)
    do(Settings((refusing(), alive.url)), call)
    assert "idempotency-key" not in alive.requests[0].headers
    with web({"*": HUNG_UP}) as dying, pytest.raises(Unavailable, match="is not known") as caught:
        do(Settings((dying.url, alive.url)), call)
    assert dying.url in caught.value.message
    assert len(alive.requests) == 1


def test_one_server_is_given_no_key(do: Do, alive: Web) -> None:
    do(Settings((alive.url, alive.url)), submit.submit_allocation(ASKED))
    assert "idempotency-key" not in alive.requests[0].headers


@pytest.mark.spec("ALLOC-3", "CLI-2")
def test_the_key_is_named_where_nobody_knows_whether_it_was_submitted(do: Do) -> None:
    busy = Answer(answers.refusal("unavailable", "A call with the same key is under way."), 503)
    with web({"*": HUNG_UP}) as dying, web({"*": busy}) as other:
        for urls in ((dying.url, other.url), (dying.url, refusing())):
            with pytest.raises(Unavailable) as caught:
                do(Settings(urls), submit.submit_allocation(ASKED))
            key = dying.requests[-1].headers["idempotency-key"]
            assert f"--idempotency-key {key}" in (caught.value.hint or "")


@pytest.mark.spec("CLI-2", "OPS-1")
@pytest.mark.parametrize("act", ["whoami", "submit"])
def test_where_both_are_dead_both_are_named(do: Do, act: str) -> None:
    urls = (refusing(), refusing())
    with pytest.raises(Unavailable, match="Can't reach") as caught:
        do(Settings(urls), ACTS.get(act, whoami)())
    assert all(url in caught.value.message for url in urls)
    assert status_of(caught.value).exit == 75


def test_a_read_goes_on_at_the_next_replica_where_an_answer_is_cut_short(
    do: Do, alive: Web
) -> None:
    with web({"*": CUT_SHORT}) as dying:
        do(Settings((dying.url, alive.url)), whoami(), whoami())
    assert (len(dying.requests), len(alive.requests)) == (1, 2), "the one that answers stays first"


# Streams, downloads and terminals.


def follow(settings: Settings) -> list[Any]:
    with SyncClient(settings, **CALLER) as client:
        return list(client.stream(logs_operations.stream_logs("42"), sleep=lambda _: None))


def follow_async(settings: Settings) -> list[Any]:
    async def no_pause(_: float) -> None: ...

    async def run() -> list[Any]:
        async with Client(settings, **CALLER) as client:
            found = client.stream(logs_operations.stream_logs("42"), sleep=no_pause)
            return [each async for each in found]

    return asyncio.run(run())


@pytest.mark.spec("LOG-4", "OPS-1")
@pytest.mark.parametrize("take", [follow, follow_async], ids=["blocking", "async"])
@pytest.mark.parametrize("kind", ["refused", "silent"])
def test_a_stream_begins_at_the_replica_that_is_there(
    take: Callable[[Settings], list[Any]], kind: str
) -> None:
    lines = [logs.block(f"line {n}\n", n) for n in range(3)]
    with web({"*": logs.serving(lines)}) as alive, dead(kind) as gone:
        records = take(Settings((gone, alive.url)))
    assert "".join(each.text for each in records) == "line 0\nline 1\nline 2\n", "and nothing else"


@pytest.mark.parametrize("take", [follow, follow_async], ids=["blocking", "async"])
def test_a_stream_names_both_where_both_are_dead(take: Callable[[Settings], list[Any]]) -> None:
    urls = (refusing(), refusing())
    with pytest.raises(Unavailable, match="Can't reach") as caught:
        take(Settings(urls))
    assert all(url in caught.value.message for url in urls)


@pytest.mark.spec("LOG-9", "OPS-1")
@pytest.mark.parametrize("kind", ["refused", "silent"])
@pytest.mark.parametrize("door", ["blocking", "async"])
def test_a_download_needs_no_pause_to_find_the_other_replica(door: str, kind: str) -> None:
    pauses: list[float] = []
    call = BytesCall("/v1/allocations/42/logs/raw")

    async def run(settings: Settings) -> bytes:
        async def pause(seconds: float) -> None:
            pauses.append(seconds)

        async with Client(settings, **CALLER) as client:
            return b"".join([each async for each in client.fetch(call, sleep=pause)])

    with web({"*": Answer(b"all of it")}) as alive, dead(kind) as gone:
        settings = Settings((gone, alive.url))
        if door == "async":
            found = asyncio.run(run(settings))
        else:
            with SyncClient(settings, **CALLER) as client:
                found = b"".join(client.fetch(call, sleep=pauses.append))
    assert (found, pauses) == (b"all of it", [])


@pytest.mark.spec("ATTACH-1", "OPS-1")
@pytest.mark.parametrize("kind", ["refused", "silent"])
def test_a_terminal_is_dialled_at_the_replica_that_is_there(kind: str) -> None:
    call = TerminalCall("/v1/allocations/42/attach")
    with attach_server(FarEnd()) as alive, dead(kind) as gone:
        client = SyncClient(Settings((gone, alive.url)), **CALLER)
        dialler = client.dialler(call, clock=SystemClock())
        dialler.dial_first().close()
        assert dialler.url == alive.url, "the one to go on with"
    urls = (refusing(), refusing())
    client = SyncClient(Settings(urls), **CALLER)
    with pytest.raises(Unavailable) as caught:
        client.dialler(call, clock=SystemClock()).dial_first()
    assert all(url in caught.value.message for url in urls)


def test_the_key_goes_with_the_call_and_not_with_its_body(do: Do, alive: Web) -> None:
    do(Settings((alive.url, refusing())), submit.submit_allocation(ASKED))
    (request,) = alive.requests
    assert len(request.headers["idempotency-key"]) == 32
    assert json.loads(request.body) == {"script": ASKED.script}
