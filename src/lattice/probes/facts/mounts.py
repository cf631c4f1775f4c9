"""The file systems a job sees: how they answered the helper's look, and what clients counted."""

from __future__ import annotations

from pathlib import Path

from lattice.base.text import inert
from lattice.domain.jobfacts import FactAbsence, FactKind, MountFact
from lattice.domain.probed import MountLook, MountsLook
from lattice.probes.facts.lustre import file_system_of, lustre_counts
from lattice.probes.facts.nfs import MountCounts, read_mountstats

_NFS = frozenset({"nfs", "nfs4"})
_LUSTRE = "lustre"
NOTHING = MountCounts()


def mount_facts(
    look: MountsLook, root: Path = Path("/")
) -> tuple[tuple[MountFact, ...], tuple[FactAbsence, ...]]:
    """What is known, and why of some nothing is."""
    nfs = read_mountstats(look.statistics)
    lustre = lustre_counts(root) if any(each.kind == _LUSTRE for each in look.mounts) else {}
    facts = tuple(_fact(each, _counts(each, nfs, lustre)) for each in look.mounts)
    absences = (FactAbsence(FactKind.MOUNTS, look.unlooked, "others"),) if look.unlooked else ()
    return facts, absences


def _counts(
    mount: MountLook, nfs: dict[str, MountCounts], lustre: dict[str, MountCounts]
) -> MountCounts:
    if mount.kind in _NFS:
        return nfs.get(mount.path, NOTHING)
    if mount.kind == _LUSTRE:
        return lustre.get(file_system_of(mount.source), NOTHING)
    return NOTHING


def _fact(mount: MountLook, counts: MountCounts) -> MountFact:
    return MountFact(
        path=inert(mount.path),
        kind=inert(mount.kind),
        source=inert(mount.source),
        answered_s=mount.answered_s,
        waited_s=mount.waited_s,
        trouble=inert(mount.trouble),
        read_bytes=counts.read_bytes,
        write_bytes=counts.write_bytes,
        operations=counts.operations,
        latency_s=counts.latency_s,
        retransmits=counts.retransmits,
        timeouts=counts.timeouts,
    )
