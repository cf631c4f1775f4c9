"""What the rules about cards share: who a card is, and how its node judges it. Pure."""

from __future__ import annotations

from typing import TypeAlias

from lattice.features.diag.model import Case

Card: TypeAlias = tuple[str, str]
"""The node, and the UUID."""


def health_of(case: Case, node: str, uuid: str) -> str:
    """`ok`, `warning` or `failure`; empty: nobody judged it."""
    facts = case.facts.get(node)
    cards = facts.gpus if facts is not None else ()
    return next((each.health for each in cards if each.uuid == uuid), "")
