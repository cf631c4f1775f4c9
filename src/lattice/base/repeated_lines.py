"""Keeps equal lines out of the log, and counts them.

While an engine is away, each loop that needs it fails once a second with the same words. The first
line is written at once. Equal ones are counted for five minutes, and then written once more with
the number in `repeated`. The process writes what it still counts when it ends in order. A line of
what somebody did, or was refused, is always written.
"""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime

WINDOW_S = 300.0
_MOST = 1000
"""Different lines that are counted at a time."""
_OF_EVERY_RECORD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime"}
_SOMEBODY = frozenset({"sub", "by", "user"})
"""Fields that name who acted or was refused."""
_UNCOMPARED = frozenset({"time", "timestamp", "exception", "_record", "_from_structlog"})


class _Repeated:
    """One line, and how many equal ones followed it."""

    __slots__ = ("count", "record", "until_s")

    def __init__(self, record: logging.LogRecord, until_s: float) -> None:
        self.record = record
        self.until_s = until_s
        self.count = 0


class RepeatedLines(logging.Filter):
    """A filter of a handler. Counts are written when a later line is logged, and by `write_all`."""

    def __init__(
        self, handler: logging.Handler, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__()
        self._handler = handler
        self._monotonic = monotonic
        self._lines: dict[object, _Repeated] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """False for a line that was written in the last five minutes."""
        if getattr(record, "repeated", 0):
            return True
        now = self._monotonic()
        self._write_counts(now)
        if _names_somebody(record):
            return True
        key = _key(record)
        found = self._lines.get(key)
        if found is not None:
            found.count += 1
            return False
        if len(self._lines) < _MOST:
            self._lines[key] = _Repeated(_without_traceback(record), now + WINDOW_S)
        return True

    def write_all(self) -> None:
        """Write the counts of all lines, at the end of the process."""
        self._write_counts(float("inf"))

    def _write_counts(self, now: float) -> None:
        # In order of insertion, so the oldest come first.
        for key, line in tuple(self._lines.items()):
            if line.until_s > now:
                return
            if self._lines.pop(key, None) is line and line.count:
                self._handler.handle(_with_count(line))


def _names_somebody(record: logging.LogRecord) -> bool:
    fields = record.msg if isinstance(record.msg, dict) else vars(record)
    return not _SOMEBODY.isdisjoint(fields)


def _key(record: logging.LogRecord) -> object:
    if isinstance(record.msg, dict):
        shown = {name: each for name, each in record.msg.items() if name not in _UNCOMPARED}
    else:
        shown = {name: each for name, each in vars(record).items() if name not in _OF_EVERY_RECORD}
        shown["event"] = record.getMessage()
    return record.name, record.levelno, repr(shown), _failure(record)


def _failure(record: logging.LogRecord) -> str:
    """The type and the text of the exception: two defects in one place are two lines."""
    if isinstance(record.msg, dict):
        return str(record.msg.get("exception", "")).rstrip().rpartition("\n")[2]
    found = record.exc_info[1] if record.exc_info else None
    return "" if found is None else f"{type(found).__name__}: {found}"


def _without_traceback(record: logging.LogRecord) -> logging.LogRecord:
    """A copy that holds no frame, and so nothing of a request, for the minutes of the count."""
    held = copy.copy(record)
    held.exc_info = held.exc_text = None
    return held


def _with_count(line: _Repeated) -> logging.LogRecord:
    record = copy.copy(line.record)
    record.created = time.time()
    if isinstance(record.msg, dict):
        moment = datetime.fromtimestamp(record.created, UTC).replace(tzinfo=None)
        record.msg = {**record.msg, "repeated": line.count, "time": f"{moment.isoformat()}Z"}
    record.repeated = line.count
    return record
