"""`MlflowRunStore`: the port `RunStore` over an MLflow tracking server."""

from __future__ import annotations

import json
import re
from functools import partial
from typing import Any

import httpx2

from lattice.adapters.http_store import (
    HttpAddress,
    HttpFailure,
    HttpStore,
    StoreBounds,
    decoded,
    trusted_authorities,
)
from lattice.adapters.mlflow.answers import error_text, experiments_in, points_in, runs_in
from lattice.base.clock import Clock
from lattice.domain.training_run import (
    JOB_TAG,
    LOADED_TAG,
    LONGEST_NAME,
    MOST_RUNS,
    SAVED_TAG,
    RunPoint,
    RunStoreSilent,
    StoredTraining,
    is_checksum,
)

LARGEST_ANSWER_BYTES = 16 * 2**20
ANSWER_S = 5.0
PAUSE_S = 5.0
"""How long no call is tried after one that got no answer."""
_PAGE = 1000
_MOST_EXPERIMENTS = 10_000
_EXPERIMENTS_S = 30.0
"""How long the list of experiments is used; a search must name each."""
_POINTS_PAGE, _MOST_POINTS = 25_000, 100_000
_RUN_ID = re.compile(r"[0-9a-f]{32}")


class MlflowRunStore:
    """One tracking server."""

    def __init__(
        self,
        address: HttpAddress,
        clock: Clock,
        *,
        page_url: str = "",
        answer_s: float = ANSWER_S,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        """Opens no connection. Runs link to `page_url`. Raises `ConfigurationError`."""
        self._clock = clock
        self._answer_s = answer_s
        self._page_url = (page_url or address.url).rstrip("/")
        self._experiments: tuple[float, dict[str, str]] | None = None
        self._numbers: dict[str, str] = {}
        self._silence = ""
        self._rests_until_s = float("-inf")
        self._http = HttpStore(
            address,
            "/api/2.0/mlflow/",
            StoreBounds(connect_s=2.0, connections=8, answer_bytes=LARGEST_ANSWER_BYTES),
            trusted_authorities(address.ca, server="MLflow", setting="runs.mlflow_ca"),
            transport,
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

    async def with_checkpoint(self, tag: str, checksum: str) -> tuple[StoredTraining, ...]:
        """Runs that have the checksum in this tag, newest first. Raises `RunStoreSilent`."""
        if not is_checksum(checksum) or tag not in {SAVED_TAG, LOADED_TAG}:
            return ()
        found = await self._search(f"tags.\"{tag}\" ILIKE '%{checksum}%'")
        return tuple(each for each in found if checksum in {*each.saved, *each.loaded})

    async def history(self, run: str, metric: str) -> tuple[RunPoint, ...]:
        """What was logged of one metric, oldest first. Raises `RunStoreSilent`."""
        found: list[RunPoint] = []
        token = ""
        while True:
            asked = {"run_id": run, "metric_key": metric, "max_results": str(_POINTS_PAGE)}
            if token:
                asked["page_token"] = token
            body = await self._ask("GET", "metrics/get-history", params=asked)
            page, token = await decoded(points_in, body)
            found += page
            if not token or len(found) >= _MOST_POINTS:
                return tuple(sorted(found, key=lambda each: (each.time, each.step)))

    def link(self, run: StoredTraining) -> str:
        """The address of its page."""
        number = self._numbers.get(run.experiment, "")
        if not (number.isalnum() and run.id.isalnum()):
            return ""
        return f"{self._page_url}/#/experiments/{number}/runs/{run.id}"

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
            found += await decoded(partial(runs_in, experiments=experiments), body)
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
            page, token = await decoded(experiments_in, body)
            found |= page
            if not token or len(found) >= _MOST_EXPERIMENTS:
                break
        self._experiments = (self._clock.monotonic() + _EXPERIMENTS_S, found)
        self._numbers = {name[:LONGEST_NAME]: number for number, name in found.items()}
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
        headers = {"Accept": "application/json"}
        if method == "POST":
            headers["Content-Type"] = "application/json"
        try:
            return await self._http.exchange(
                method, path, self._answer_s, headers=headers, **content
            )
        except HttpFailure as error:
            raise RunStoreSilent(str(error)) from None


def _check_able(status: int, body: bytes) -> None:
    """Raises `RunStoreSilent` if no other question would be answered either."""
    if 300 <= status < 400:
        # Neither its address nor its text is shown.
        raise RunStoreSilent(f"it answered {status}: a redirect, which is not followed")
    if status >= 500 or status in {401, 403, 429}:
        raise RunStoreSilent(f"it answered {status}: {error_text(body) or 'nothing'}")
