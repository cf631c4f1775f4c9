"""Both doors of the SDK against the same servers: what one does, the other does."""

from __future__ import annotations

import asyncio
import inspect
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import trustme

import lattice
from lattice.base.call import Call
from lattice.base.errors import (
    BY_CODE,
    InternalError,
    LatticeError,
    LoginRequired,
    NotFound,
    RateLimited,
    Unavailable,
)
from lattice.client import Client, Settings, SyncClient
from lattice.client.tokens import FixedToken, TokenSource
from lattice.features.identity.model import Identity
from tests.fakes import answers
from tests.fakes.web import Answer, Request, Web, web

Do = Callable[..., Any]
WHOAMI = Call("GET", "/v1/auth/whoami", Identity)


def blocking(
    settings: Settings, verb: str, *words: Any, tokens: TokenSource | None = None, **named: Any
) -> Any:
    with SyncClient(settings, tokens=tokens or FixedToken("t0k3n"), environment={}) as client:
        return getattr(client, verb)(*words, **named)


def asynchronous(
    settings: Settings, verb: str, *words: Any, tokens: TokenSource | None = None, **named: Any
) -> Any:
    async def run() -> Any:
        async with Client(settings, tokens=tokens or FixedToken("t0k3n"), environment={}) as client:
            return await getattr(client, verb)(*words, **named)

    return asyncio.run(run())


@pytest.fixture(params=[blocking, asynchronous], ids=["blocking", "async"])
def do(request: pytest.FixtureRequest) -> Do:
    found: Do = request.param
    return found


@pytest.fixture
def server() -> Iterator[Web]:
    with web({}) as running:
        yield running


def at(*servers: Web | str) -> Settings:
    return Settings(tuple(each if isinstance(each, str) else each.url for each in servers))


def dead_url() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


@pytest.mark.spec("CLI-3")
def test_both_doors_have_the_same_verbs_with_the_same_arguments() -> None:
    verbs = {name for name in dir(SyncClient) if not name.startswith("_")}
    assert verbs == {name for name in dir(Client) if not name.startswith("_")}
    assert verbs >= {
        "allocations",
        "allocation",
        "history",
        "nodes",
        "node",
        "whoami",
        "discovery",
        "wait",
    }
    for name in verbs - {"url", "from_environment"}:
        ours = inspect.signature(getattr(SyncClient, name)).parameters
        theirs = inspect.signature(getattr(Client, name)).parameters
        assert [(each.name, each.kind) for each in ours.values()] == [
            (each.name, each.kind) for each in theirs.values()
        ]


@pytest.mark.spec("CLI-3")
def test_every_verb(do: Do, server: Web) -> None:
    server.routes |= {
        "/v1/allocations": answers.listing(answers.allocation()),
        "/v1/allocations/12345_7": answers.card(answers.task(7, "running", job_id=12345)),
        "/v1/history": answers.listing(),
        "/v1/nodes": {"nodes": [answers.node()], "sources": []},
        "/v1/nodes/n1": {"node": answers.node(), "sources": []},
        "/v1/auth/whoami": answers.IDENTITY,
        "/api/v1/auth/discovery": {"idp_url": "a", "client_id": "b", "issuer": "c"},
    }
    found = do(at(server), "allocations", states=("running", "failed"), user="bob", everyone=True)
    assert found.allocations[0].id == "12345"
    assert server.requests[-1].query == {
        "state": ["running", "failed"],
        "user": ["bob"],
        "all": ["true"],
    }
    assert do(at(server), "allocation", "12345_7").allocation.array.task_id == 7
    assert do(at(server), "history", limit=5, cursor="a&b").allocations == ()
    assert server.requests[-1].query == {"limit": ["5"], "cursor": ["a&b"]}
    assert do(at(server), "nodes").nodes[0].name == "n1"
    assert do(at(server), "node", "n1").node.cpus == 64
    assert do(at(server), "whoami").user.value == "alice"
    assert do(at(server), "discovery").issuer == "c"
    assert "authorization" not in server.requests[-1].headers, "discovery needs no token"


def test_says_who_it_is(do: Do, server: Web) -> None:
    server.routes["*"] = answers.IDENTITY
    do(at(server), "whoami")
    do(at(server), "whoami")
    first, second = (request.headers for request in server.requests)
    assert first["authorization"] == "Bearer t0k3n"
    assert first["user-agent"] == f"lattice/{lattice.__version__}"
    assert first["x-request-id"] != second["x-request-id"]


@pytest.mark.spec("CLI-2", "CLI-3")
@pytest.mark.parametrize("code", sorted(BY_CODE))
def test_errors_come_back_as_themselves(do: Do, server: Web, code: str) -> None:
    server.routes["*"] = Answer(answers.refusal(code, "What happened."), 418)
    with pytest.raises(BY_CODE[code]) as caught:
        do(at(server), "whoami")
    assert caught.value.message == "What happened."
    assert caught.value.hint == "Do something else."
    assert caught.value.__notes__ == ["request r-1"]


def test_rate_limit_says_when(do: Do, server: Web) -> None:
    body = answers.refusal("rate_limited", "Too many.", hint="")
    server.routes["*"] = Answer(body, 429, {"Retry-After": "7"})
    with pytest.raises(RateLimited) as caught:
        do(at(server), "whoami")
    assert caught.value.retry_after_s == 7
    assert caught.value.hint == "Try again in 7 s."


@pytest.mark.parametrize(
    ("answer", "kind", "said"),
    [
        (Answer(b"<html>", 500), Unavailable, "answered 500"),
        (Answer(b"<html>", 404), Unavailable, "answered 404"),
        (Answer({}, 302, {"Location": "http://127.0.0.1:1/"}), Unavailable, "answered 302"),
        (Answer({"error": "x"}, 400), Unavailable, "answered 400"),
        (Answer(answers.refusal("novel", "New."), 499), InternalError, "New."),
        (Answer(b"not json"), InternalError, "can't read"),
        (Answer({"sub": 1}), InternalError, "can't read"),
    ],
)
def test_answers_that_are_not_lattices(
    do: Do, server: Web, answer: Answer, kind: type[LatticeError], said: str
) -> None:
    server.routes["*"] = answer
    with pytest.raises(kind, match=said):
        do(at(server), "whoami")
    assert len(server.requests) == 1, "no redirect is followed, nothing is asked twice"


def test_another_replica_is_asked_when_one_is_away(do: Do, server: Web) -> None:
    server.routes["*"] = answers.IDENTITY
    assert do(at(dead_url(), server), "whoami").sub == "u-1"
    with web({"*": Answer(b"bad gateway", 502)}) as broken:
        assert do(at(broken, server), "whoami").sub == "u-1"
        assert len(broken.requests) == 1


def test_a_refusal_is_an_answer_and_not_asked_of_another(do: Do, server: Web) -> None:
    server.routes["*"] = answers.IDENTITY
    stale = Answer(answers.refusal("unavailable", "Slurm does not answer."), 503)
    with web({"*": stale}) as first, pytest.raises(Unavailable, match="Slurm does not answer"):
        do(at(first, server), "whoami")
    assert server.requests == []


def test_one_server_is_asked_twice_when_it_hangs_up(do: Do, server: Web) -> None:
    replies = [Answer(raw=b"HTTP/1.1 200 OK\r\nContent-Le"), Answer(answers.IDENTITY)]
    server.routes["*"] = lambda _: replies.pop(0)
    assert do(at(server), "whoami").sub == "u-1"


def test_only_reading_is_asked_twice(do: Do, server: Web) -> None:
    server.routes["*"] = Answer(raw=b"")
    with pytest.raises(Unavailable, match="Whether it was done is not known") as caught:
        do(at(server, server), "call", Call("POST", "/v1/x", Identity))
    assert "before you repeat it" in (caught.value.hint or "")
    assert len(server.requests) == 1


def test_nobody_there(do: Do) -> None:
    with pytest.raises(Unavailable, match=r"Can't reach http://127\.0\.0\.1"):
        do(at(dead_url(), dead_url()), "whoami")


class Renewing:
    def __init__(self, *tokens: str) -> None:
        self.tokens = list(tokens)
        self.refused: list[str] = []

    def token(self) -> str | None:
        return self.tokens[0]

    def renewed(self, refused: str) -> str | None:
        self.refused.append(refused)
        self.tokens.pop(0)
        return self.tokens[0] if self.tokens else None


def only(good: str) -> Callable[[Request], Answer]:
    def answer(request: Request) -> Answer:
        if request.headers.get("authorization") == f"Bearer {good}":
            return Answer(answers.IDENTITY)
        return Answer(answers.refusal("login_required", "Your token has expired."), 401)

    return answer


@pytest.mark.spec("AUTH-1")
def test_refused_token_is_renewed_once(do: Do, server: Web) -> None:
    server.routes["*"] = only("new")
    tokens = Renewing("old", "new")
    assert do(at(server), "whoami", tokens=tokens).sub == "u-1"
    assert tokens.refused == ["old"]
    with pytest.raises(LoginRequired, match="has expired"):
        do(at(server), "whoami", tokens=Renewing("x", "y", "new"))
    assert len(server.requests) == 4


@pytest.mark.spec("AUTH-1")
def test_without_a_token_nothing_is_sent_to_another_machine(do: Do) -> None:
    with pytest.raises(LoginRequired, match=r"^Not logged in\. Run `lattice login` first\.$"):
        do(at("https://lattice.invalid"), "whoami", tokens=FixedToken(None))


def test_a_server_on_this_machine_may_need_no_token(do: Do, server: Web) -> None:
    server.routes["*"] = answers.IDENTITY
    assert do(at(server), "whoami", tokens=FixedToken(None)).sub == "u-1"
    assert "authorization" not in server.requests[0].headers
    server.routes["*"] = only("x")
    with pytest.raises(LoginRequired, match=r"^Not logged in\."):
        do(at(server), "whoami", tokens=FixedToken(None))


@pytest.mark.spec("OPS-6")
def test_tls(do: Do) -> None:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    with (
        authority.cert_pem.tempfile() as ca,
        web({"*": answers.IDENTITY}, context=context) as server,
    ):
        assert do(Settings((server.url,), ca=ca), "whoami").sub == "u-1"
        with pytest.raises(Unavailable, match="certificate"):
            do(Settings((server.url,)), "whoami")
        assert len(server.requests) == 1, "the token is not sent to who can't prove itself"


@pytest.mark.spec("CLI-3")
@pytest.mark.parametrize("door", ["blocking", "async"])
def test_wait_asks_until_it_is_over(door: str, server: Web) -> None:
    states = ["pending", "running", "completed"]
    server.routes["*"] = lambda _: answers.card(answers.allocation(state=states.pop(0)))
    paused: list[float] = []
    if door == "blocking":
        card = blocking(at(server), "wait", "12345", sleep=paused.append)
    else:

        async def sleep(seconds: float) -> None:
            paused.append(seconds)

        card = asynchronous(at(server), "wait", "12345", sleep=sleep)
    assert card.allocation.state.finished
    assert paused == [1.0, 1.5]
    assert server.requests[0].path == "/v1/allocations/12345"
    assert server.requests[1].path == "/v1/allocations/12345%401794747600", "by its full name"


def test_not_found_is_not_retried(do: Do, server: Web) -> None:
    server.routes["*"] = Answer(answers.refusal("not_found", "No allocation 1."), 404)
    with pytest.raises(NotFound):
        do(at(server, server), "allocation", "1")
    assert len(server.requests) == 1


@pytest.mark.spec("CLI-3")
def test_importing_the_sdk_loads_nothing_and_never_grpc() -> None:
    code = (
        "import sys, lattice.client; before = set(sys.modules);"
        "assert not {'httpx2', 'ssl', 'asyncio', 'yaml'} & before, before;"
        "lattice.client.SyncClient; lattice.client.Client; lattice.client.Settings;"
        "import lattice.features.allocations.operations;"
        "assert not {'grpc', 'google.protobuf', 'fastapi', 'cryptography'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError):
        lattice.client.Nothing  # noqa: B018
