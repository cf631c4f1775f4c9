"""Answers of an MLflow server, of any content: runs, points or a reason, and nothing else."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import suppress

from lattice.adapters.mlflow.answers import error_text, experiments_in, points_in, runs_in
from lattice.domain.training_run import (
    LONGEST_NAME,
    MOST_CHECKSUMS,
    MOST_PARAMETERS,
    MOST_RUN_METRICS,
    RunStoreSilent,
)

TOKENS = tuple(
    each.encode()
    for each in (
        *('{"runs": [', '{"info": {', '"data": {', '"metrics": [', '"tags": [', "}", "]", ","),
        *('"run_id": "a"', '"start_time": 1795000000000', '"end_time": "1"', '"run_name": "fit"'),
        *('"status": "RUNNING"', '"key": "loss"', '"value": 0.5', '"value": "NaN"', '"step": 7'),
        *(
            '"timestamp": 1795000000000',
            '"slurm.job.id"',
            "1e999",
            "-1",
            "9" * 30,
            "null",
            "\\u0000",
        ),
        *('"params": [', '"checkpoint.saved.sha256"', f'"{"a" * 64}"'),
        *('"experiments": [', '"experiment_id": "3"', '"next_page_token": "x"', '"message": "no"'),
    )
)


_RUN = {
    "info": {
        "run_id": "a",
        "experiment_id": "3",
        "run_name": "fit",
        "status": "RUNNING",
        "start_time": 1795000000000,
        "user_id": "alice",
    },
    "data": {
        "metrics": [{"key": "loss", "value": 0.5, "timestamp": 1795000000000, "step": 7}],
        "tags": [
            {"key": "slurm.job.id", "value": "42"},
            {"key": "checkpoint.saved.sha256", "value": f"sha256:{'a' * 64}, {'B' * 64}"},
        ],
        "params": [{"key": "lr", "value": "0.1"}, {"key": "hub_token", "value": "hf_abc"}],
    },
}


def seeds() -> Iterator[bytes]:
    """Whole answers, and answers that are not what was asked for."""
    finished = {**_RUN["info"], "status": "FINISHED", "end_time": "1795000060000"}
    for answer in (
        {"runs": [_RUN]},
        {"runs": [_RUN, {"info": finished, "data": {}}], "next_page_token": "x"},
        {"runs": [{"info": {"run_id": ""}}, {"data": None}, 7]},
        {"runs": {"info": []}},
        {"metrics": _RUN["data"]["metrics"]},
        {"metrics": [{"key": "loss", "value": "NaN"}, {"value": 1e300, "step": -1}]},
        {"experiments": [{"experiment_id": "3", "name": "vision"}]},
        {"experiments": "none"},
        {"error_code": "INVALID_PARAMETER_VALUE", "message": "no \u0007 such run"},
        [],
    ):
        yield json.dumps(answer).encode()
    yield b'{"runs": [{"info": {"start_time": 1e999}}]}'
    yield b""


def try_one(data: bytes) -> None:
    """The bytes are the answer to each question."""
    with suppress(RunStoreSilent):
        for run in runs_in(data, {"3": "vision"}):
            assert max(map(len, (run.id, run.name, run.user, run.experiment))) <= LONGEST_NAME
            assert len(run.metrics) <= MOST_RUN_METRICS
            assert len(run.parameters) <= MOST_PARAMETERS
            assert all(max(len(name), len(text)) <= 2 * LONGEST_NAME
                       for name, text in run.parameters.items())  # fmt: skip
            assert max(len(run.saved), len(run.loaded)) <= MOST_CHECKSUMS
            assert all(math.isfinite(each.value) for each in run.metrics)
            assert run.job_id is None or 0 < run.job_id < 10**9
    with suppress(RunStoreSilent):
        points, _ = points_in(data)
        assert all(math.isfinite(each.value) for each in points)
    with suppress(RunStoreSilent):
        experiments_in(data)
    assert error_text(data).isprintable()
