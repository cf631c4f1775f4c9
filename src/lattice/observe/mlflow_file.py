"""Reads runs from MLflow's SQLite file, as the user whose command it is.

It opens the file for reading only. The file may be anybody's, and a training may write to it on a
shared file system. So a question has a time limit, and what the file has is only data.
A file in the `wal` mode needs a folder where the reader may write; that is SQLite's own rule.
"""

from __future__ import annotations

import math
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from lattice.domain.training_run import (
    JOB_TAG,
    LONGEST_NAME,
    MOST_PARAMETERS,
    MOST_RUN_METRICS,
    MOST_RUNS,
    RunMetric,
    RunPoint,
    RunStoreSilent,
    StoredTraining,
    is_checksum,
)
from lattice.observe.run_parameters import known_parameters

VARIABLE = "MLFLOW_TRACKING_URI"
_PREFIX = "sqlite:///"
_LIMIT_S = 5.0
_EVERY = 10_000
"""Steps of SQLite's machine between two looks at the time."""
_LONGEST_VALUE = 8_000
_MOST_POINTS = 100_000
_MOST_TAGS = 500
_COLUMNS = (
    "SELECT r.run_uuid, r.name, e.name, r.user_id, r.status, r.start_time, r.end_time "
    "FROM runs r LEFT JOIN experiments e ON e.experiment_id = r.experiment_id "
    "WHERE r.lifecycle_stage = 'active' AND "
)
_ORDER = " ORDER BY r.start_time DESC LIMIT ?"
_OF_JOB = "r.run_uuid IN (SELECT run_uuid FROM tags WHERE key = ? AND value = ?)"
_TAGGED = "r.run_uuid IN (SELECT run_uuid FROM tags WHERE key = ? AND value LIKE ?)"
_NAMED = "(r.name = ? OR r.run_uuid = ?)"
_HISTORY = (
    "SELECT value, timestamp, step FROM metrics WHERE run_uuid = ? AND key = ? "
    "AND NOT is_nan ORDER BY timestamp, step LIMIT ?"
)
_TAGS = "SELECT key, value FROM tags WHERE run_uuid = ? LIMIT ?"
_PARAMETERS = "SELECT key, value FROM params WHERE run_uuid = ? ORDER BY key LIMIT ?"
_NEWEST = (
    "SELECT value, timestamp, step, key FROM latest_metrics WHERE run_uuid = ? "
    "AND NOT is_nan ORDER BY key LIMIT ?"
)
_NEWEST_MS = 253_402_300_799_000


def mlflow_file(environment: Mapping[str, str]) -> Path | None:
    """The file that MLflow's own variable names; None if it names none."""
    text = environment.get(VARIABLE, "")
    if not text.startswith(_PREFIX) or "?" in text:
        return None
    path = text.removeprefix(_PREFIX)
    return Path(path) if path else None


class MlflowFile:
    """One file. Every question opens it anew."""

    def __init__(self, path: Path, limit_s: float = _LIMIT_S) -> None:
        self.path = path
        self._limit_s = limit_s

    def of_job(self, job_id: int) -> tuple[StoredTraining, ...]:
        """Runs that name this job, newest first. Raises `RunStoreSilent`."""
        return self._runs(_OF_JOB, (JOB_TAG, str(job_id)))

    def named(self, name: str) -> tuple[StoredTraining, ...]:
        """Runs with this name or id, newest first. Raises `RunStoreSilent`."""
        return self._runs(_NAMED, (name, name))

    def with_checkpoint(self, tag: str, checksum: str) -> tuple[StoredTraining, ...]:
        """Runs that have the checksum in this tag, newest first. Raises `RunStoreSilent`."""
        if not is_checksum(checksum):
            return ()
        found = self._runs(_TAGGED, (tag, f"%{checksum}%"))
        return tuple(each for each in found if checksum in {*each.saved, *each.loaded})

    def history(self, run: str, metric: str) -> tuple[RunPoint, ...]:
        """What was logged of one metric, oldest first. Raises `RunStoreSilent`."""
        with self._open() as base:
            points = (_point(*row) for row in base.execute(_HISTORY, (run, metric, _MOST_POINTS)))
            return tuple(each for each in points if each is not None)

    def _runs(self, condition: str, values: Sequence[str]) -> tuple[StoredTraining, ...]:
        with self._open() as base:
            rows = base.execute(_COLUMNS + condition + _ORDER, (*values, MOST_RUNS)).fetchall()
            return tuple(
                _run(row, started, base) for row in rows if (started := _moment(row[5])) is not None
            )

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        until_s = time.monotonic() + self._limit_s
        # Quoted, so that a name can hold no options of SQLite.
        address = f"file:{quote(str(self.path.absolute()))}?mode=ro"
        try:
            with closing(sqlite3.connect(address, uri=True, timeout=self._limit_s)) as base:
                base.set_progress_handler(lambda: time.monotonic() > until_s, _EVERY)
                base.execute("PRAGMA query_only = ON")
                base.execute("PRAGMA trusted_schema = OFF")
                yield base
        except sqlite3.OperationalError as error:
            raise RunStoreSilent(f"{self.path}: {_reason(str(error))}") from None
        except (sqlite3.Error, TypeError, ValueError, OverflowError) as error:
            raise RunStoreSilent(f"{self.path} is no file of MLflow: {error}"[:400]) from None


def _reason(error: str) -> str:
    if "interrupted" in error:
        return "it took too long"
    return "it can't be opened" if error.startswith("unable to open") else error


def _run(row: Sequence[Any], started: datetime, base: sqlite3.Connection) -> StoredTraining:
    number, name, experiment, user, status, _, ended = row
    tags = _tags(base, number)
    return StoredTraining(
        id=_text(number),
        name=_text(name),
        experiment=_text(experiment),
        user=tags.get("mlflow.user", "")[:LONGEST_NAME] or _text(user),
        status=_text(status).lower(),
        started=started,
        ended=_moment(ended),
        tags=tags,
        metrics=_metrics(base, number),
        parameters=_parameters(base, number),
    )


def _tags(base: sqlite3.Connection, run: str) -> dict[str, str]:
    rows = base.execute(_TAGS, (run, _MOST_TAGS))
    return {_text(key): str(value or "")[:_LONGEST_VALUE] for key, value in rows}


def _parameters(base: sqlite3.Connection, run: str) -> dict[str, str]:
    rows = base.execute(_PARAMETERS, (run, MOST_PARAMETERS))
    return known_parameters((_text(key), _text(value)) for key, value in rows)


def _metrics(base: sqlite3.Connection, run: str) -> tuple[RunMetric, ...]:
    rows = base.execute(_NEWEST, (run, MOST_RUN_METRICS))
    found = []
    for value, moment, step, key in rows:
        point = _point(value, moment, step)
        if point is not None:
            name = _text(key)
            found.append(RunMetric(name=name, value=point.value, step=point.step, time=point.time))
    return tuple(found)


def _point(value: Any, moment: Any, step: Any) -> RunPoint | None:
    time_of = _moment(moment)
    if time_of is None or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return RunPoint(time_of, step if isinstance(step, int) else 0, float(value))


def _moment(milliseconds: Any) -> datetime | None:
    if not isinstance(milliseconds, int) or not 0 < milliseconds <= _NEWEST_MS:
        return None
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def _text(value: Any) -> str:
    return str(value)[:LONGEST_NAME] if value is not None else ""
