"""Claims as text. Pure."""

from __future__ import annotations

from datetime import datetime

from lattice.base.moment import moment
from lattice.base.style import Style
from lattice.base.table import Cell, Column, table
from lattice.base.text import inert
from lattice.domain.claim import ClaimStep
from lattice.features.claims.model import ClaimAnswer, ClaimList


def claimed_line(answer: ClaimAnswer) -> str:
    """What the caller holds now."""
    claim = answer.claim
    already = "" if answer.changed else "  (already; nothing was changed)"
    return f"Claimed {inert(claim.nodes)} for {inert(claim.user)}: claim {claim.id}{already}\n"


def released_line(answer: ClaimAnswer) -> str:
    """What nobody holds any more."""
    claim = answer.claim
    return f"Released {inert(claim.nodes)}: claim {claim.id} of {inert(claim.user)} ended\n"


def claim_table(answer: ClaimList, style: Style, now: datetime) -> str:
    """A row for each claim."""
    if not answer.claims:
        return ""
    columns = [Column("NODES"), Column("USER"), Column("TENANT"), Column("STATE")]
    columns += [Column("SINCE"), Column("CLAIM"), Column("REASON")]
    rows: list[list[Cell]] = [
        [
            inert(each.nodes),
            inert(each.user),
            inert(each.tenant),
            (each.step.value, "green" if each.step is ClaimStep.CLAIMED else "yellow"),
            moment(each.since, style, now),
            each.id,
            inert(each.reason),
        ]
        for each in answer.claims
    ]
    return table(columns, rows, style)
