"""The section `log` of every long-running process."""
# ruff: noqa: RUF009 - `setting` declares a field, as `dataclasses.field` does.

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from lattice.base.setting import setting


class LogLevel(StrEnum):
    """The lowest severity that is written."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(StrEnum):
    """One JSON object per line for machines, or columns for a person at a terminal."""

    JSON = "json"
    CONSOLE = "console"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSection:
    level: LogLevel = setting(
        LogLevel.INFO, "`debug`, `info`, `warning` or `error`.", env="LATTICE_LOG_LEVEL"
    )
    format: LogFormat = setting(
        LogFormat.JSON, "`json` or `console`; both go to stderr.", env="LATTICE_LOG_FORMAT"
    )
