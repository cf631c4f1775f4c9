"""Submitting and cancelling as text. Pure; knows no terminal."""

from __future__ import annotations

from lattice.base.text import inert
from lattice.features.submit.model import CancelAnswer, SubmitAnswer


def submitted_line(answer: SubmitAnswer) -> str:
    """What scripts and people read."""
    return f"Submitted allocation {inert(answer.id)}\n"


def cancelled_line(answer: CancelAnswer) -> str:
    """Slurm ends it in its own time, so this says no more than was asked."""
    if answer.cancelling:
        return f"Cancelling allocation {inert(answer.id)}\n"
    return f"Allocation {inert(answer.id)} had already ended: {inert(answer.state)}\n"
