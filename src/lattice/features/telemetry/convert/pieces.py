"""Times and labels, as every message has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lattice.domain.metric import Labels
from lattice.wire.v1 import telemetry_pb2 as pb

LATEST_S = 1e11
_EARLIEST_S = 1e9


def is_moment(seconds: float) -> bool:
    """Return True if a sample can be from this time; NaN is no time."""
    return _EARLIEST_S < seconds < LATEST_S


def labels_of(told: Sequence[pb.SampleLabel]) -> Labels:
    if len(told) == 1:  # the most frequent case
        only = told[0]
        return ((only.name, only.value),)
    return tuple([(each.name, each.value) for each in told])


def add_labels(to: Any, labels: Labels) -> None:
    for name, value in labels:
        to.add(name=name, value=value)
