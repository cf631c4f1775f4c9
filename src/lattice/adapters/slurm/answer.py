"""The envelope of a slurmrestd answer: records, errors and the time of the data.

Records are returned as raw bytes, one each. So a broken record affects only itself, and an
unchanged one need not be decoded again. The schema interprets the records.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from lattice.base.errors import Unavailable

NOTHING_FOUND = 9003
"""ESLURM_REST_EMPTY_RESULT: an empty answer that is sent as an error."""

NO_CHANGE = 1900
"""SLURM_NO_CHANGE_IN_DATA: from 23.11 on, this means 304 for nodes."""

_TEXT_LIMIT = 500
_UNREADABLE = (msgspec.MsgspecError, ValueError, RecursionError)


@dataclass(frozen=True, slots=True)
class SlurmProblem:
    """One entry of `errors[]`."""

    number: int = 0
    text: str = ""
    source: str = ""


class SlurmRefused(Unavailable):
    """Slurm answered with an error, or its answer can't be parsed."""

    def __init__(
        self, message: str, *, hint: str | None = None, problems: tuple[SlurmProblem, ...] = ()
    ) -> None:
        super().__init__(message, hint=hint)
        self.problems = problems


@dataclass(frozen=True, slots=True)
class SlurmAnswer:
    """The parsed parts of one answer.

    `listed` is False if the requested list is missing. From 23.11 on that is the answer to a poll
    without changes, and it must never be taken for an empty list. `last_update` is slurmctld's own
    time if the answer has it. It is 0 with the empty list that newer releases send for no changes.
    """

    records: Sequence[bytes | msgspec.Raw] = ()
    listed: bool = True
    problems: tuple[SlurmProblem, ...] = ()
    last_update: int | None = None

    @property
    def unchanged(self) -> bool:
        """True if this is the answer to a poll without changes."""
        if self.problems:
            return all(each.number == NO_CHANGE for each in self.problems)
        return not self.listed or (not self.records and self.last_update == 0)


class _Envelope(msgspec.Struct):
    errors: msgspec.Raw = msgspec.Raw(b"[]")
    last_update: msgspec.Raw = msgspec.Raw(b"null")
    jobs: list[msgspec.Raw] | None = None
    nodes: list[msgspec.Raw] | None = None
    licenses: list[msgspec.Raw] | None = None
    accounts: list[msgspec.Raw] | None = None
    associations: list[msgspec.Raw] | None = None


_ENVELOPE = msgspec.json.Decoder(_Envelope)


def read_answer(body: bytes, key: str) -> SlurmAnswer:
    """Parse an answer. Raises `SlurmRefused` if it is no JSON object."""
    try:
        envelope = _ENVELOPE.decode(body)
        # The decoder does not parse these, so they may exceed Python's limits.
        problems = _problems(loosely(bytes(envelope.errors)))
        last_update = _moment(loosely(bytes(envelope.last_update)))
    except _UNREADABLE:
        return _read_leniently(body, key)
    records = getattr(envelope, key)
    return SlurmAnswer(records or (), records is not None, problems, last_update)


def checked(answer: SlurmAnswer, status: int, asked: str) -> SlurmAnswer:
    """The answer, unless it is an error: by its status, by `errors[]`, or both."""
    real = tuple(each for each in answer.problems if each.number != NOTHING_FOUND)
    if real or (status >= 400 and not answer.problems):
        raise SlurmRefused(
            f"slurmrestd could not answer {asked}: {_summary(real) or f'HTTP {status}'}",
            hint=_hint(status, real),
            problems=real,
        )
    if not answer.listed and not answer.problems:
        raise SlurmRefused(f"slurmrestd answered {asked} without the list it was asked for")
    return answer


def loosely(raw: bytes) -> Any:
    """Any JSON value as json-c writes it: also bad UTF-8, NaN and raw control characters.

    json-c does not check the bytes of a job name. So one user's name in Latin-1 would otherwise
    break the view of everyone. Raises `ValueError` or `RecursionError` if it is not JSON.
    """
    return _clean(json.loads(raw.decode("utf-8", "replace"), strict=False))


def _read_leniently(body: bytes, key: str) -> SlurmAnswer:
    try:
        value = loosely(body)
        records = value.get(key)
        return SlurmAnswer(
            [msgspec.json.encode(each) for each in records] if isinstance(records, list) else (),
            isinstance(records, list),
            _problems(value.get("errors")),
            _moment(value.get("last_update")),
        )
    except (*_UNREADABLE, AttributeError):  # not JSON, or not an object
        raise SlurmRefused(
            "slurmrestd gave an answer that can't be read",
            hint=f"It began with {body[:60]!r}. Is this address really slurmrestd?",
        ) from None


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, dict):
        return {_clean(key): _clean(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_clean(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        return None
    return value


def _problems(value: Any) -> tuple[SlurmProblem, ...]:
    if not isinstance(value, list):
        return ()
    return tuple(_problem(each) for each in value if isinstance(each, dict))


def _problem(entry: dict[str, Any]) -> SlurmProblem:
    number = entry.get("error_number")
    texts = [entry.get("error"), entry.get("description")]
    source = entry.get("source")
    return SlurmProblem(
        number if isinstance(number, int) else 0,
        ": ".join(text for text in texts if isinstance(text, str) and text)[:_TEXT_LIMIT],
        source[:_TEXT_LIMIT] if isinstance(source, str) else "",
    )


def _moment(value: Any) -> int | None:
    if isinstance(value, dict):
        value = value.get("number") if value.get("set") else None
    return value if isinstance(value, int) and value >= 0 else None


def _summary(problems: tuple[SlurmProblem, ...]) -> str:
    return "; ".join(each.text or f"error {each.number}" for each in problems[:3])


_CONNECTION_LOST = {-1, 1007, 7000, 7001, 7003, 7008}


def _hint(status: int, problems: tuple[SlurmProblem, ...]) -> str | None:
    if status in (401, 403):
        return "slurmrestd refused the server's token: renew it (scontrol token)."
    if any(each.number == 7000 or "slurmdbd" in each.text for each in problems):
        return "slurmdbd does not answer slurmrestd: is it running?"
    if any(each.number in _CONNECTION_LOST for each in problems):
        return "slurmctld does not answer slurmrestd: is it running?"
    return None


def unfinished_jobs(body: bytes) -> int:
    """How many jobs wait and run, by slurmctld's own statistics; 0 if they do not say it."""
    try:
        statistics = loosely(body)["statistics"]
        counts = [statistics.get(f"jobs_{each}") for each in ("pending", "running")]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return 0
    return sum(each for each in counts if isinstance(each, int) and 0 <= each < 2**31)
