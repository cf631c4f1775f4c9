"""Which GPUs of which node a job has, from Slurm's GRES detail. Pure.

slurmctld tells one text for each node of the job, in the order of its node list, where the site's
GPUs have device files: `gpu:a100:2(IDX:0-1)`. Where it says anything else, or not as many texts as
the job has nodes, nothing is known: a job is never given a card that may be another's.
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
    """By node, for all or for none; a node that has none of the job's is not named."""
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
    """The GPUs in one node's text, by Slurm's numbers; None where it can't be told which."""
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
    """`IDX:0-1,4` as numbers. `CNT:2` says how many, not which."""
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
