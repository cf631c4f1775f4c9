"""`MlflowRunStore`: the port `RunStore` over an MLflow tracking server."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

from lattice.adapters.mlflow.answers import error_text, experiments_in, points_in, runs_in
from lattice.base.clock import Clock
from lattice.base.errors import ConfigurationError
from lattice.domain.training_run import (
    JOB_TAG,
    MOST_RUNS,
    RunPoint,
    RunStoreSilent,
    StoredTraining,
)

LARGEST_ANSWER_BYTES = 16 * 2**20
ANSWER_S = 5.0
PAUSE_S = 5.0
"""How long no call is tried after one that got no answer."""
_CONNECT_S = 2.0
_CONNECTIONS = 8
_PAGE = 1000
_MOST_EXPERIMENTS = 10_000
_EXPERIMENTS_S = 30.0
"""How long the list of experiments is used; a search must name each."""
_POINTS_PAGE, _MOST_POINTS = 25_000, 100_000
_RUN_ID = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True, kw_only=True)
class MlflowAddress:
    """The server's address and credentials. Secrets are read from their files for each call."""

    url: str
    username: str = ""
    password_file: Path | None = None
    bearer_file: Path | None = None
    ca: Path | None = None
    page_url: str = ""
    """Where people open it; empty: at `url`."""


class MlflowRunStore:
    """One tracking server."""

    def __init__(
        self,
        address: MlflowAddress,
        clock: Clock,
        *,
        answer_s: float = ANSWER_S,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        """Opens no connection. Raises `ConfigurationError`."""
        self._address = address
        self._clock = clock
        self._answer_s = answer_s
        self._base = address.url.rstrip("/") + "/api/2.0/mlflow/"
        self._experiments: tuple[float, dict[str, str]] | None = None
        self._silence = ""
        self._rests_until_s = float("-inf")
        self._http = httpx2.AsyncClient(
            verify=_trusted(address.ca),
            timeout=httpx2.Timeout(None, connect=_CONNECT_S),
            limits=httpx2.Limits(max_connections=_CONNECTIONS),
            follow_redirects=False,
            trust_env=False,
            transport=transport,
        )

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def of_job(self, job_id: int) -> tuple[StoredTraining, ...]:
        """Runs that name this job, newest first. Raises `RunStoreSilent`."""
        return await self._search(f"tags.\"{JOB_TAG}\" = '{job_id:d}'")

    async def named(self, name: str) -> tuple[StoredTraining, ...]:
        """Runs with this name or id, newest first. Raises `RunStoreSilent`."""
        field = "run_id" if _RUN_ID.fullmatch(name) else "run_name"
        # MLflow's filters have no escapes, and two kinds of quotes.
        quote = '"' if "'" in name else "'"
        if quote in name or not name.isprintable():
            return ()
        return await self._search(f"attributes.{field} = {quote}{name}{quote}")

    async def history(self, run: str, metric: str) -> tuple[RunPoint, ...]:
        """What was logged of one metric, oldest first. Raises `RunStoreSilent`."""
        found: list[RunPoint] = []
        token = ""
        while True:
            asked = {"run_id": run, "metric_key": metric, "max_results": str(_POINTS_PAGE)}
            if token:
                asked["page_token"] = token
            page, token = points_in(await self._ask("GET", "metrics/get-history", params=asked))
            found += page
            if not token or len(found) >= _MOST_POINTS:
                return tuple(sorted(found, key=lambda each: (each.time, each.step)))

    def link(self, run: StoredTraining) -> str:
        """The address of its page."""
        base = (self._address.page_url or self._address.url).rstrip("/")
        experiments = self._experiments[1] if self._experiments is not None else {}
        for number, name in experiments.items():
            if name == run.experiment and number.isalnum() and run.id.isalnum():
                return f"{base}/#/experiments/{number}/runs/{run.id}"
        return ""

    async def _search(self, condition: str) -> tuple[StoredTraining, ...]:
        experiments = await self._all_experiments()
        numbers, found = [*experiments], list[StoredTraining]()
        for first in range(0, len(numbers), _PAGE):
            asked = {
                "experiment_ids": numbers[first : first + _PAGE],
                "filter": condition,
                "max_results": MOST_RUNS,
                "order_by": ["attributes.start_time DESC"],
            }
            body = await self._ask("POST", "runs/search", content=json.dumps(asked).encode())
            found += runs_in(body, experiments)
        found.sort(key=lambda each: each.started, reverse=True)
        return tuple(found[:MOST_RUNS])

    async def _all_experiments(self) -> dict[str, str]:
        known = self._experiments
        if known is not None and known[0] > self._clock.monotonic():
            return known[1]
        found: dict[str, str] = {}
        token = ""
        while True:
            asked: dict[str, Any] = {"max_results": _PAGE, "order_by": ["creation_time DESC"]}
            if token:
                asked["page_token"] = token
            body = await self._ask("POST", "experiments/search", content=json.dumps(asked).encode())
            page, token = experiments_in(body)
            found |= page
            if not token or len(found) >= _MOST_EXPERIMENTS:
                break
        self._experiments = (self._clock.monotonic() + _EXPERIMENTS_S, found)
        return found

    async def _ask(self, method: str, path: str, **content: Any) -> bytes:
        if self._clock.monotonic() < self._rests_until_s:
            raise RunStoreSilent(self._silence)
        try:
            status, body = await self._exchange(method, path, **content)
            _check_able(status, body)
        except RunStoreSilent as silence:
            self._silence = str(silence)
            self._rests_until_s = self._clock.monotonic() + PAUSE_S
            raise
        if status != 200:
            raise RunStoreSilent(f"it refused the question: {error_text(body)}")
        return body

    async def _exchange(self, method: str, path: str, **content: Any) -> tuple[int, bytes]:
        # Compression is declined: a small answer could expand to any size.
        headers = {"Accept": "application/json", "Accept-Encoding": "identity"}
        if method == "POST":
            headers["Content-Type"] = "application/json"
        headers |= self._credential()
        try:
            async with (
                asyncio.timeout(self._answer_s),
                self._http.stream(method, self._base + path, headers=headers, **content) as answer,
            ):
                return answer.status_code, await _bounded(answer)
        except TimeoutError:
            raise RunStoreSilent(f"it did not answer within {self._answer_s:g} s") from None
        except (httpx2.HTTPError, OSError) as error:
            raise RunStoreSilent(str(error)[:200] or type(error).__name__) from None

    def _credential(self) -> Mapping[str, str]:
        address = self._address
        try:
            if address.bearer_file is not None:
                return {"Authorization": f"Bearer {address.bearer_file.read_text().strip()}"}
            if address.password_file is None:
                return {}
            basic = f"{address.username}:{address.password_file.read_text().strip()}".encode()
        except (OSError, UnicodeDecodeError) as error:
            raise RunStoreSilent(f"the secret to ask it with can't be read: {error}") from None
        return {"Authorization": f"Basic {base64.b64encode(basic).decode()}"}


def _trusted(ca: Path | None) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context()
        if ca is not None:
            context.load_verify_locations(cafile=ca)
    except (ssl.SSLError, OSError) as error:
        raise ConfigurationError(
            f"The authorities of MLflow can't be read from {ca}: {error}",
            hint="Correct runs.mlflow_ca in the configuration.",
        ) from None
    return context


def _check_able(status: int, body: bytes) -> None:
    """Raises `RunStoreSilent` if no other question would be answered either."""
    if 300 <= status < 400:
        # Neither its address nor its text is shown.
        raise RunStoreSilent(f"it answered {status}: a redirect, which is not followed")
    if status >= 500 or status in {401, 403, 429}:
        raise RunStoreSilent(f"it answered {status}: {error_text(body) or 'nothing'}")


async def _bounded(answer: httpx2.Response) -> bytes:
    if answer.headers.get("Content-Encoding", "identity") != "identity":
        raise RunStoreSilent("it answered in an encoding that was not asked for")
    found = bytearray()
    async for part in answer.aiter_raw():
        found += part
        if len(found) > LARGEST_ANSWER_BYTES:
            raise RunStoreSilent(f"it answered more than {LARGEST_ANSWER_BYTES // 2**20} MB")
    return bytes(found)
