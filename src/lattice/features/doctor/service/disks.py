"""The check of a folder's disk, for every group that has one. Pure."""

from __future__ import annotations

from lattice.base.sizes import size_text
from lattice.features.doctor.model import Check, Topic
from lattice.features.doctor.service.facts import FolderFacts
from lattice.features.doctor.service.measured import Inspected

_LEAST_BYTES = 1024**3
_LEAST_SHARE = 0.05
_FULL_BYTES = 64 * 1024**2


def room(topic: Topic, found: Inspected[FolderFacts], what: str) -> Check:
    """The free space of a folder; `what` names it in the remedy."""
    if found.off:
        return topic.off(found.off)
    facts = found.value
    if facts is None:
        return topic.unknown(found.reason)
    evidence = (
        f"{facts.folder}: {size_text(facts.free_bytes)} of {size_text(facts.total_bytes)} free"
    )
    remedy = f"Make room on the disk of {what}, or move it to a larger one."
    if facts.read_only:
        return topic.failed(f"{facts.folder}: read-only", f"Mount the disk of {what} writable.")
    if facts.free_bytes < _FULL_BYTES:
        return topic.failed(evidence, remedy)
    if facts.free_bytes < min(_LEAST_BYTES, _LEAST_SHARE * facts.total_bytes):
        return topic.warning(evidence, remedy)
    return topic.ok(evidence)
