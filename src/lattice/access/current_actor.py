"""The verified caller of the call that this task handles. Set where calls are admitted."""

from __future__ import annotations

from contextvars import ContextVar

from lattice.access.actor import Actor

_ACTOR: ContextVar[Actor | None] = ContextVar("lattice_current_actor", default=None)


def current_actor() -> Actor | None:
    """None outside of a call."""
    return _ACTOR.get()


def set_current_actor(actor: Actor) -> None:
    """For the task that handles the call."""
    _ACTOR.set(actor)
