"""The log of a long-running process: one line for each event on stderr, without secrets.

This is for servers, which have structlog. Lines of libraries that use Python's own logging take the
same steps. The agent writes the same lines without structlog (`lattice.agent.log`).
"""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping
from contextlib import AbstractContextManager
from typing import Any, TextIO

import structlog
from structlog.typing import Processor

from lattice.base.loglines import install, redacted, unarmed


def configure_logging(
    level: str, *, console: bool = False, stream: TextIO | None = None
) -> structlog.stdlib.BoundLogger:
    """Set up logging for the process, once, from its composition root. Returns the logger."""
    out = stream or sys.stderr
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
        structlog.processors.format_exc_info,
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.stdlib.PositionalArgumentsFormatter(),
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(out)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.ExtraAdder(), *shared],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                _redact,
                *_rendering(console=console, colours=console and out.isatty()),
            ],
        )
    )
    install(handler, level)
    logger: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger("lattice")
    return logger


def _rendering(*, console: bool, colours: bool) -> list[Processor]:
    if not console:
        return [structlog.processors.JSONRenderer(sort_keys=True)]
    return [_unarmed, structlog.dev.ConsoleRenderer(colors=colours, timestamp_key="time")]


def request_context(request_id: str, **more: str) -> AbstractContextManager[None]:
    """Add the request's id to every line written inside the context."""
    return structlog.contextvars.bound_contextvars(request_id=request_id, **more)


def _redact(
    _logger: Any, _method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    # uvicorn has some messages twice, the second time with colours.
    event.pop("color_message", None)
    return redacted(event)


def _unarmed(
    _logger: Any, _method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    # JSON escapes what a terminal would act on; the console renderer does not.
    for name, value in event.items():
        if isinstance(value, str):
            event[name] = unarmed(value)
    return event
