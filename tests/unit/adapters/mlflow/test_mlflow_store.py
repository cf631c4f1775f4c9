"""What the store asks, where, and what it makes of answers."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from lattice.adapters.http_store import HttpAddress
from lattice.adapters.mlflow import store as module
from lattice.adapters.mlflow.store import MlflowRunStore
from lattice.domain.training_run import MOST_RUNS, RunStoreSilent
from tests.fakes.manual_clock import ManualClock

URL = "https://mlflow.site"
EXPERIMENTS = {"experiments": [{"experiment_id": "3", "name": "vision"}]}
RUN = {
    "info": {
        "run_id": "a" * 32,
        "run_name": "fit",
        "experiment_id": "3",
        "status": "FINISHED",
        "start_time": 1_795_000_000_000,
        "end_time": "1795000060000",
        "artifact_uri": "http://169.254.169.254/latest/meta-data",
    },
    "data": {
        "metrics": [
            {"key": "loss", "value": 0.5, "timestamp": 1_795_000_050_000, "step": 7},
            {"key": "bad", "value": "NaN", "timestamp": 1_795_000_050_000, "step": 7},
        ],
        "tags": [
            {"key": "slurm.job.id", "value": "42"},
            {"key": "mlflow.user", "value": "alice"},
            {"key": "mlflow.source.name", "value": "file:///etc/passwd"},
        ],
    },
}
Answer = Callable[[httpx2.Request], httpx2.Response]


class Server:
    """Answers searches, and keeps what it was asked."""

    def __init__(self, runs: Any = None, answer: Answer | None = None) -> None:
        self.runs = {"runs": [RUN]} if runs is None else runs
        self.answer = answer
        self.requests: list[httpx2.Request] = []
        self.clock = ManualClock()

    def store(self, *, page_url: str = "", **address: Any) -> MlflowRunStore:
        return MlflowRunStore(
            HttpAddress(url=URL, **address),
            self.clock,
            page_url=page_url,
            transport=httpx2.MockTransport(self._answer),
        )

    def _answer(self, request: httpx2.Request) -> httpx2.Response:
        self.requests.append(request)
        made = self.answer(request) if self.answer is not None else self._found(request)
        # As from a socket: the bytes are read by the client.
        return httpx2.Response(
            made.status_code, headers=made.headers, stream=httpx2.ByteStream(_sent(made))
        )

    def _found(self, request: httpx2.Request) -> httpx2.Response:
        body = EXPERIMENTS if "experiments" in request.url.path else self.runs
        return httpx2.Response(200, json=body)


def _sent(answer: httpx2.Response) -> bytes:
    content = answer.content
    return gzip.compress(content) if "Content-Encoding" in answer.headers else content


async def test_a_run_is_read_as_it_says() -> None:
    (run,) = await Server().store().of_job(42)
    assert (run.name, run.experiment, run.user, run.status) == (
        "fit",
        "vision",
        "alice",
        "finished",
    )
    assert run.job_id == 42
    assert [(each.name, each.value, each.step) for each in run.metrics] == [("loss", 0.5, 7)]


@pytest.mark.threat("engines")
async def test_nothing_but_the_named_server_is_asked() -> None:
    server = Server()
    store = server.store()
    (run,) = await store.of_job(42)
    await store.named("fit")
    await store.history(run.id, "loss")
    assert {each.url.host for each in server.requests} == {"mlflow.site"}
    assert {each.url.path.split("/")[1] for each in server.requests} == {"api"}


@pytest.mark.threat("engines")
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_no_redirect_is_followed(status: int) -> None:
    server = Server(
        answer=lambda _: httpx2.Response(status, headers={"Location": "http://169.254.169.254/"})
    )
    with pytest.raises(RunStoreSilent, match="not followed"):
        await server.store().of_job(42)
    assert [each.url.host for each in server.requests] == ["mlflow.site"]


async def test_no_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    made: dict[str, Any] = {}
    client = httpx2.AsyncClient

    def noting(**given: Any) -> httpx2.AsyncClient:
        made.update(given)
        return client(**given)

    monkeypatch.setattr(module.httpx2, "AsyncClient", noting)
    Server().store()
    assert made["trust_env"] is False
    assert made["follow_redirects"] is False


@pytest.mark.parametrize("name", ["fit' OR '1' = '1", "x' AND tags.a != '", 'say "fit"'])
async def test_a_name_stays_a_name(name: str) -> None:
    server = Server()
    await server.store().named(name)
    asked = json.loads(server.requests[-1].content)["filter"]
    quote = asked.removeprefix("attributes.run_name = ")[0]
    assert asked == f"attributes.run_name = {quote}{name}{quote}"
    assert quote not in name


@pytest.mark.parametrize("name", ['it\'s a "fit"', "a\nb", "\x1b[31m"])
async def test_a_name_that_cannot_be_asked_for_is_not(name: str) -> None:
    server = Server()
    assert await server.store().named(name) == ()
    assert server.requests == []


@pytest.mark.parametrize(
    "body",
    [
        b"<html>",
        b"[]",
        b'{"runs": 7}',
        b'{"runs": [{"info": {}}]}',
        b"\xff",
        b"[" * 100_000,
    ],
)
async def test_an_answer_of_something_else_is_a_reason(body: bytes) -> None:
    def answer(request: httpx2.Request) -> httpx2.Response:
        if "experiments" in request.url.path:
            return httpx2.Response(200, json=EXPERIMENTS)
        return httpx2.Response(200, content=body)

    with pytest.raises(RunStoreSilent, match="can't be read"):
        await Server(answer=answer).store().of_job(42)


async def test_a_run_without_a_time_is_left_out() -> None:
    run = {"info": {**RUN["info"], "start_time": 10**30}}
    assert await Server({"runs": [run]}).store().of_job(42) == ()


async def test_an_answer_has_a_largest_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LARGEST_ANSWER_BYTES", 1000)
    server = Server(answer=lambda _: httpx2.Response(200, content=b" " * 2000))
    with pytest.raises(RunStoreSilent, match="more than"):
        await server.store().of_job(42)


async def test_a_compressed_answer_is_refused() -> None:
    server = Server(
        answer=lambda _: httpx2.Response(
            200, content=gzip.compress(b"{}"), headers={"Content-Encoding": "gzip"}
        )
    )
    with pytest.raises(RunStoreSilent, match="encoding"):
        await server.store().of_job(42)
    assert server.requests[0].headers["Accept-Encoding"] == "identity"


async def test_after_a_failure_it_rests() -> None:
    server = Server(answer=lambda _: httpx2.Response(503, content=b"down"))
    store = server.store()
    for _ in range(3):
        with pytest.raises(RunStoreSilent, match="503: down"):
            await store.of_job(42)
    assert len(server.requests) == 1
    server.clock.advance(module.PAUSE_S + 1)
    server.answer = None
    assert len(await store.of_job(42)) == 1


async def test_a_refused_question_stops_no_other() -> None:
    def answer(request: httpx2.Request) -> httpx2.Response:
        if "get-history" in request.url.path:
            return httpx2.Response(404, json={"message": "no such run"})
        return httpx2.Response(200, json=EXPERIMENTS if "exp" in request.url.path else {})

    store = Server(answer=answer).store()
    with pytest.raises(RunStoreSilent, match="no such run"):
        await store.history("b" * 32, "loss")
    assert await store.of_job(42) == ()


async def test_the_credential_is_read_for_each_call(tmp_path: Path) -> None:
    secret = tmp_path / "token"
    secret.write_text("one\n")
    server = Server()
    store = server.store(bearer_file=secret)
    await store.of_job(42)
    secret.write_text("two\n")
    await store.of_job(42)
    assert server.requests[0].headers["Authorization"] == "Bearer one"
    assert server.requests[-1].headers["Authorization"] == "Bearer two"


async def test_experiments_are_listed_page_by_page_and_then_used_for_a_while() -> None:
    pages = [
        {"experiments": [{"experiment_id": "1", "name": "a"}], "next_page_token": "more"},
        {"experiments": [{"experiment_id": "2", "name": "b"}]},
    ]

    def answer(request: httpx2.Request) -> httpx2.Response:
        if "experiments" in request.url.path:
            return httpx2.Response(200, json=pages["page_token" in json.loads(request.content)])
        asked = json.loads(request.content)
        assert asked["experiment_ids"] == ["1", "2"]
        assert asked["max_results"] == MOST_RUNS
        return httpx2.Response(200, json={"runs": []})

    server = Server(answer=answer)
    store = server.store()
    await store.of_job(42)
    await store.of_job(42)
    paths = [each.url.path.rsplit("/", 2)[-2] for each in server.requests]
    assert paths == ["experiments", "experiments", "runs", "runs"]


async def test_a_link_is_to_where_people_open_it() -> None:
    server = Server()
    store = server.store(page_url="https://runs.site/mlflow/")
    (run,) = await store.of_job(42)
    assert store.link(run) == f"https://runs.site/mlflow/#/experiments/3/runs/{'a' * 32}"
