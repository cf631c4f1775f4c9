"""A line of the catalogue of a server's own metrics: its name, kind, labels and HELP text. Pure.

`server_series` and `cluster_series` list them. `OwnMetrics` shows nothing else, and the reference
page is made of them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Series:
    """`kind` is `counter`, `gauge` or `histogram`. `help_text` is shown on the page."""

    name: str
    kind: str
    help_text: str
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SeriesValue:
    """A value of a series of the catalogue. `labels` are the values of its labels, in order."""

    series: str
    value: float
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SeriesGroup:
    """What belongs together, with a text for the reference page."""

    title: str
    text: str
    series: tuple[Series, ...]


def counter(name: str, help_text: str, *labels: str) -> Series:
    return Series(name, "counter", help_text, labels)


def gauge(name: str, help_text: str, *labels: str) -> Series:
    return Series(name, "gauge", help_text, labels)


def histogram(name: str, help_text: str, *labels: str) -> Series:
    return Series(name, "histogram", help_text, labels)
