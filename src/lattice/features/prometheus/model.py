"""What is asked in Prometheus' words. Pure."""

from __future__ import annotations

from dataclasses import dataclass

MOST_STEPS = 11_000
"""As many as Prometheus itself takes."""
LONGEST_QUERY = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class PrometheusQuestion:
    """The parameters of any of the calls, as they came."""

    query: str = ""
    time: str = ""
    start: str = ""
    end: str = ""
    step: str = ""
    match: tuple[str, ...] = ()
    name: str = ""
    """Of a label, where its values are asked for."""
