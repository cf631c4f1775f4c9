"""Parses the answers of MLflow's REST interface. Pure.

What a run says is text of its user. Values are bounded here, and made inert where they are shown.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import UTC, datetime

import msgspec

from lattice.base.text import inert
from lattice.domain.training_run import (
    LONGEST_NAME,
    MOST_RUN_METRICS,
    RunMetric,
    RunPoint,
    RunStoreSilent,
    StoredTraining,
)
from lattice.observe.run_parameters import known_parameters

_LONGEST_ERROR = 200
_NEWEST_MS = 253_402_300_799_000
"""The end of the year 9999."""


class _Tag(msgspec.Struct):
    key: str
    value: str = ""


class _Metric(msgspec.Struct):
    key: str = ""
    value: float | str = math.nan
    timestamp: int | str = 0
    step: int | str = 0


class _Info(msgspec.Struct):
    run_id: str
    run_name: str = ""
    experiment_id: str = ""
    user_id: str = ""
    status: str = ""
    start_time: int | str = 0
    end_time: int | str = 0


class _Data(msgspec.Struct):
    metrics: list[_Metric] = msgspec.field(default_factory=list)
    tags: list[_Tag] = msgspec.field(default_factory=list)
    params: list[_Tag] = msgspec.field(default_factory=list)


class _Run(msgspec.Struct):
    info: _Info
    data: _Data = msgspec.field(default_factory=_Data)


class _Runs(msgspec.Struct):
    runs: list[_Run] = msgspec.field(default_factory=list)
    next_page_token: str = ""


class _Experiment(msgspec.Struct):
    experiment_id: str
    name: str = ""


class _Experiments(msgspec.Struct):
    experiments: list[_Experiment] = msgspec.field(default_factory=list)
    next_page_token: str = ""


class _History(msgspec.Struct):
    metrics: list[_Metric] = msgspec.field(default_factory=list)
    next_page_token: str = ""


class _Refusal(msgspec.Struct):
    message: str


_runs = msgspec.json.Decoder(_Runs)
_experiments = msgspec.json.Decoder(_Experiments)
_history = msgspec.json.Decoder(_History)
_refusal = msgspec.json.Decoder(_Refusal)


def runs_in(body: bytes, experiments: dict[str, str]) -> tuple[StoredTraining, ...]:
    """The runs of a search; `experiments` names them. Raises `RunStoreSilent`."""
    try:
        found = _runs.decode(body).runs
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise _unread() from None
    runs = []
    for each in found:
        started = _moment(each.info.start_time)
        if started is not None:
            runs.append(_run(each, started, experiments))
    return tuple(runs)


def experiments_in(body: bytes) -> tuple[dict[str, str], str]:
    """Names by id, and the token of the next page. Raises `RunStoreSilent`."""
    try:
        found = _experiments.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise _unread() from None
    return {each.experiment_id: each.name for each in found.experiments}, found.next_page_token


def points_in(body: bytes) -> tuple[tuple[RunPoint, ...], str]:
    """The values of a metric, and the token of the next page. Raises `RunStoreSilent`."""
    try:
        found = _history.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise _unread() from None
    points = (_point(each) for each in found.metrics)
    return tuple(each for each in points if each is not None), found.next_page_token


def error_text(body: bytes) -> str:
    """The server's reason of a refusal, made safe to show."""
    try:
        text = _refusal.decode(body).message
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        text = body[: 4 * _LONGEST_ERROR].decode(errors="replace")
    return inert(text.strip())[:_LONGEST_ERROR]


def _run(run: _Run, started: datetime, experiments: dict[str, str]) -> StoredTraining:
    info, tags = run.info, {each.key: each.value for each in run.data.tags}
    return StoredTraining(
        id=info.run_id[:LONGEST_NAME],
        name=(info.run_name or tags.get("mlflow.runName", ""))[:LONGEST_NAME],
        experiment=experiments.get(info.experiment_id, info.experiment_id)[:LONGEST_NAME],
        user=(tags.get("mlflow.user") or info.user_id)[:LONGEST_NAME],
        status=info.status.lower()[:LONGEST_NAME],
        started=started,
        ended=_moment(info.end_time),
        tags=tags,
        metrics=tuple(_newest(run.data.metrics))[:MOST_RUN_METRICS],
        parameters=known_parameters((each.key, each.value) for each in run.data.params),
    )


def _newest(metrics: Iterable[_Metric]) -> Iterable[RunMetric]:
    for each in sorted(metrics, key=lambda one: one.key):
        point = _point(each)
        if point is not None:
            name = each.key[:LONGEST_NAME]
            yield RunMetric(name=name, value=point.value, step=point.step, time=point.time)


def _point(metric: _Metric) -> RunPoint | None:
    """None for a value that is no number: what diverged is no point of a line."""
    try:
        value, step = float(metric.value), int(metric.step)
    except (ValueError, OverflowError):
        return None
    time = _moment(metric.timestamp)
    if time is None or not math.isfinite(value) or abs(step) >= 2**63:
        return None
    return RunPoint(time, step, value)


def _moment(milliseconds: float | str) -> datetime | None:
    try:
        number = int(milliseconds)
    except (ValueError, OverflowError):
        return None
    return datetime.fromtimestamp(number / 1000, UTC) if 0 < number <= _NEWEST_MS else None


def _unread() -> RunStoreSilent:
    return RunStoreSilent("its answer can't be read")
