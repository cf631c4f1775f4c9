"""The agent's log: one line an event on stderr, without secrets, in the servers' format.

It uses Python's own logging. An agent shares its node with jobs, and the servers' logging library
would take a tenth of the agent's memory.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any, TextIO

from lattice.base.loglines import install, redacted, unarmed

_OF_EVERY_RECORD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime"}


def configure_logging(level: str, *, console: bool = False, stream: TextIO | None = None) -> None:
    """Set up logging for the process. Call it once."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(_Columns() if console else _Json())
    install(handler, level)


class _Json(logging.Formatter):
    """One JSON object a line, for programs."""

    def format(self, record: logging.LogRecord) -> str:
        return json.dumps(self.facts(record), sort_keys=True)

    def facts(self, record: logging.LogRecord) -> dict[str, Any]:
        """The fields of an event, by name."""
        extra = {
            name: value for name, value in vars(record).items() if name not in _OF_EVERY_RECORD
        }
        moment = datetime.fromtimestamp(record.created, UTC).replace(tzinfo=None)
        fields = extra | {
            "event": record.getMessage(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "time": f"{moment.isoformat(timespec='microseconds')}Z",
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return redacted(fields)


class _Columns(_Json):
    """For people; without escape sequences that a terminal would act on."""

    def format(self, record: logging.LogRecord) -> str:
        fields = self.facts(record)
        exception = fields.pop("exception", "")
        head = f"{fields.pop('time')} [{fields.pop('level'):8}] {fields.pop('event')}"
        parts = [head, *(f"{name}={value!r}" for name, value in sorted(fields.items()))]
        return unarmed("\n".join((" ".join(parts), exception)).rstrip("\n"))
