"""Shared by rules about GPUs: their identity and health. Pure."""

from __future__ import annotations

from typing import TypeAlias

from lattice.features.diag.model import Case

Card: TypeAlias = tuple[str, str]
"""The node, and the UUID."""


def health_of(case: Case, node: str, uuid: str) -> str:
    """Return `ok`, `warning` or `failure`; empty if the GPU was not judged."""
    facts = case.facts.get(node)
    cards = facts.gpus if facts is not None else ()
    return next((each.health for each in cards if each.uuid == uuid), "")
