"""Which GPUs of which node a job has, from Slurm's GRES detail. Pure.

If a site's GPUs have device files, slurmctld has one text for each node of the job, in the order of
its node list: `gpu:a100:2(IDX:0-1)`. Any other text, or another number of texts than nodes, counts
as unknown. A job never gets a card that may be another job's.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from lattice.domain.allocation import NodeGpus
from lattice.domain.nodeset import NodeSet

_MOST_GPUS = 1024
_LONGEST_TEXT = 4096
_ENTRY = re.compile(
    r"(?P<name>[A-Za-z0-9_.-]{1,64})(?::(?P<type>[A-Za-z0-9_. -]{1,64}))?:(?P<count>[0-9]{1,5})"
    r"(?:\((?P<detail>[^()]*)\))?",
    re.ASCII,
)
_NUMBERS = re.compile(r"[0-9]{1,5}(?:-[0-9]{1,5})?(?:,[0-9]{1,5}(?:-[0-9]{1,5})?)*", re.ASCII)


def gpus_of(nodes: str, details: Sequence[str]) -> tuple[NodeGpus, ...]:
    """By node, for all nodes or for none; nodes without GPUs of the job are left out."""
    if not details or not any(details):
        return ()
    try:
        names = tuple(NodeSet.parse(nodes, limit=len(details)))
    except ValueError:
        return ()
    if len(names) != len(details):
        return ()
    found = []
    for name, detail in zip(names, details, strict=True):
        indices = indices_in(detail)
        if indices is None:
            return ()
        if indices:
            found.append(NodeGpus(name, indices))
    return tuple(found)


def indices_in(detail: str) -> tuple[int, ...] | None:
    """The GPUs in one node's text, by Slurm's numbers; None if that is not certain."""
    if len(detail) > _LONGEST_TEXT:
        return None
    found: set[int] = set()
    at = 0
    while at < len(detail):
        entry = _ENTRY.match(detail, at)
        if entry is None:
            return None
        at = entry.end()
        if at < len(detail):
            if detail[at] != ",":
                return None
            at += 1
        if entry["name"] != "gpu" or not int(entry["count"]):
            continue
        indices = _listed(entry["detail"] or "")
        if indices is None or len(indices) != int(entry["count"]) or found & indices:
            return None
        found |= indices
    return tuple(sorted(found))


def _listed(detail: str) -> set[int] | None:
    """Parses `IDX:0-1,4`. `CNT:2` has the number of GPUs, but not which."""
    label, _, numbers = detail.partition(":")
    if label != "IDX" or not _NUMBERS.fullmatch(numbers):
        return None
    found: set[int] = set()
    for part in numbers.split(","):
        first, _, last = part.partition("-")
        begin, end = int(first), int(last or first)
        if not begin <= end < _MOST_GPUS:
            return None
        found |= set(range(begin, end + 1))
    return found
