"""Calls that change something, through both doors: a body, and never twice unless it is safe."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from lattice.base.errors import Unavailable, UsageError
from lattice.client import Client, Settings, SyncClient
from lattice.client.tokens import FixedToken
from lattice.features.submit.model import SubmitRequest
from tests.fakes.web import Answer, Web, web

Do = Callable[..., Any]
ASKED = SubmitRequest(script="#!/bin/sh\necho ü\n", nodes="2", labels={"a": "b"})
COMMENTED = SubmitRequest(script="#!/bin/sh\n#SBATCH --comment=mine\ntrue\n")
"""The key would take the comment's place, so it is given none."""
ANSWER = {"id": "12", "job_id": 12}


def blocking(settings: Settings, verb: str, *words: Any, **named: Any) -> Any:
    with SyncClient(settings, tokens=FixedToken("t"), environment={}) as client:
        return getattr(client, verb)(*words, **named)


def asynchronous(settings: Settings, verb: str, *words: Any, **named: Any) -> Any:
    async def run() -> Any:
        async with Client(settings, tokens=FixedToken("t"), environment={}) as client:
            return await getattr(client, verb)(*words, **named)

    return asyncio.run(run())


@pytest.fixture(params=[blocking, asynchronous], ids=["blocking", "async"])
def do(request: pytest.FixtureRequest) -> Do:
    found: Do = request.param
    return found


def at(*servers: Web) -> Settings:
    return Settings(tuple(each.url for each in servers))


@pytest.mark.spec("CLI-3")
def test_a_submission_is_one_json_document(do: Do) -> None:
    with web({"/v1/allocations": ANSWER}) as server:
        assert do(at(server), "submit", ASKED).job_id == 12
    (request,) = server.requests
    assert (request.method, request.headers["content-type"]) == ("POST", "application/json")
    assert json.loads(request.body) == {
        "script": ASKED.script,
        "nodes": "2",
        "labels": {"a": "b"},
    }
    assert "idempotency-key" not in request.headers


@pytest.mark.spec("CLI-3")
def test_a_cancel_has_no_body(do: Do) -> None:
    route = {"/v1/allocations/5_1/cancel": {"id": "5_1", "cancelling": True, "state": "running"}}
    with web(route) as server:
        assert do(at(server), "cancel", "5_1").cancelling
    assert server.requests[0].body == b""


@pytest.mark.spec("ALLOC-3", "CLI-3")
def test_it_is_asked_again_only_with_a_key(do: Do) -> None:
    cut = Answer(raw=b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")
    with web({"*": cut}) as broken, web({"/v1/allocations": ANSWER}) as whole:
        with pytest.raises(Unavailable, match="Whether it was done is not known"):
            do(at(broken, whole), "submit", COMMENTED)
        assert (len(broken.requests), len(whole.requests)) == (1, 0)
        assert do(at(broken, whole), "submit", ASKED, idempotency_key="k").id == "12"
        keys = [each.headers["idempotency-key"] for each in (broken.requests[1], *whole.requests)]
        assert keys == ["k", "k"]


@pytest.mark.parametrize("key", ["ü", "a\nb"])
def test_a_key_that_no_header_can_carry(do: Do, key: str) -> None:
    with pytest.raises(UsageError, match="key is not valid"):
        do(Settings(("http://127.0.0.1:1",)), "submit", ASKED, idempotency_key=key)
