"""The feature's verbs as calls to the server, and what the records of a stream mean. No I/O."""

from lattice.features.logs.api.calls import (
    LogChoice,
    job_end,
    list_streams,
    raw_logs,
    read_logs,
    stream_logs,
)
from lattice.features.logs.api.reading import LogReading

__all__ = [
    "LogChoice",
    "LogReading",
    "job_end",
    "list_streams",
    "raw_logs",
    "read_logs",
    "stream_logs",
]
