"""Measured round trips as text. Pure."""

from __future__ import annotations

from statistics import median

from lattice.base.text import inert
from lattice.features.link.model import NodeReach


def reach(answer: NodeReach) -> str:
    """One line of figures, one of how they were measured."""
    trips = sorted(answer.round_trips_ms)
    figures = f"median {median(trips):.1f} ms, least {trips[0]:.1f}, most {trips[-1]:.1f}"
    way = f"measured by {inert(answer.measured_by)}"
    if answer.linked_to and answer.linked_to != answer.measured_by:
        way += f", linked to {inert(answer.linked_to)}"
    return (
        f"{inert(answer.node)}  {len(trips)} round trips: {figures}\n"
        f"    opened in {answer.opened_ms:.1f} ms; {way}\n"
    )
