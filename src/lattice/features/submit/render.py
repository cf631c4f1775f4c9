"""The results of submit and cancel as text. Pure."""

from __future__ import annotations

from lattice.base.text import inert
from lattice.features.submit.model import CancelAnswer, SubmitAnswer


def submitted_line(answer: SubmitAnswer) -> str:
    """The line that scripts and people read."""
    return f"Submitted allocation {inert(answer.id)}\n"


def cancelled_line(answer: CancelAnswer) -> str:
    """Slurm ends a job in its own time, so this reports only the request."""
    if answer.cancelling:
        return f"Cancelling allocation {inert(answer.id)}\n"
    return f"Allocation {inert(answer.id)} had already ended: {inert(answer.state)}\n"
