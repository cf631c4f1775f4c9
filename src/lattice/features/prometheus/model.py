"""Requests of the Prometheus API. Pure."""

from __future__ import annotations

from dataclasses import dataclass

MOST_STEPS = 11_000
"""The same limit as in Prometheus."""
LONGEST_QUERY = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class PrometheusQuestion:
    """The parameters of any of the calls, unparsed."""

    query: str = ""
    time: str = ""
    start: str = ""
    end: str = ""
    step: str = ""
    match: tuple[str, ...] = ()
    name: str = ""
    """The label, in a request for its values."""
