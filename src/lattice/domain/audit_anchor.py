"""Anchors: the newest link, written outside the state store, so that a rolled-back log shows. Pure.

2026-03-01T12:00:00Z lattice-audit CLUSTER SEQUENCE LINK
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from lattice.domain.audit_chain import ChainPoint

NAME = "lattice-audit"


def anchor_text(now: datetime, cluster: str, point: ChainPoint) -> str:
    """The line for a point of the chain, without a newline."""
    time = now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return f"{time} {NAME} {cluster} {point.sequence} {point.link.hex()}"


def read_anchors(lines: Iterable[str], cluster: str) -> dict[int, bytes]:
    """The anchors of a cluster in a file, or in a file of syslog. Other lines are skipped."""
    found: dict[int, bytes] = {}
    for line in lines:
        _, mark, rest = line.partition(f"{NAME} {cluster} ")
        sequence, _, link = rest.strip().partition(" ")
        if not mark or not sequence.isdecimal():
            continue
        try:
            found[int(sequence)] = bytes.fromhex(link)
        except ValueError:
            continue
    return found
