"""Slurm's reservations of nodes for one person's jobs, as the gate makes and removes them.

A reservation is that of Lattice by its name. One that was changed since is left alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from lattice.domain.administration import ReservationList, is_claim_reservation
from lattice.domain.nodeset import NodeSet
from lattice.domain.privileged import Outcome
from lattice.helper.account import VerbRefused

_PERSON = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*", re.ASCII)
_FIELD = re.compile(r"(?:^| )(\w+)=(\S*)")
_NOTHING = ("", "(null)")
_LIMITED_BY = ("PartitionName", "AllowedPartitions", "QOS", "Groups", "Accounts")
"""Fields that are empty in a reservation of Lattice. A release of Slurm may not have them all."""
_FLAGS = "SPEC_NODES"
"""Slurm sets this flag by itself; the gate sets none. So nothing lets jobs of others in."""
_DURATION = "3650-00:00:00"
"""Slurm takes `UNLIMITED` for one year."""
_BEGIN = "now-5minutes"
"""In effect at once, even if slurmctld's clock is behind. munge allows no larger difference."""
_WAITING = "PENDING"
_MOST_LISTED = 32 * 1024
_MOST_NAMED = 5


class Scontrol(Protocol):
    """Runs `scontrol`, and returns its output. Raises `VerbRefused`."""

    def __call__(self, *arguments: str, may_fail: bool = False) -> str: ...


@dataclass(frozen=True, slots=True)
class Listed:
    """A reservation as Slurm lists it."""

    name: str
    user: str
    """Empty if it is not, or no longer, one for a single person's jobs alone."""
    nodes: NodeSet


class ClaimReservations:
    """Those of one cluster."""

    def __init__(self, scontrol: Scontrol, squeue: Callable[..., str]) -> None:
        self._scontrol = scontrol
        self._squeue = squeue

    def make(self, name: str, user: str, nodes: NodeSet) -> None:
        """Nothing changes if it is there already. Raises `VerbRefused`.

        Slurm refuses nodes with running jobs, but not those with suspended or completing ones. So
        the jobs are checked once no other job can start there.
        """
        there = self._is_there(name, user, nodes)
        if not there:
            there = not self._create(name, user, nodes)
        try:
            self._check_jobs(user, nodes)
        except VerbRefused:
            if not there:
                self._take_back(name)
            raise

    def remove(self, name: str) -> None:
        """Nothing happens if there is none. Raises `VerbRefused`."""
        found = self._find(name)
        if found is None:
            return
        if not found.user:
            message = (
                f"the reservation {name} was changed by others than Lattice, and is left alone; "
                f"`scontrol delete reservationname={name}` removes it"
            )
            raise VerbRefused(Outcome.FAILED, message)
        self._delete(name)

    def part_after(self, after: str) -> ReservationList:
        """Those with a name after this one, as many as fit in an answer."""
        part: list[tuple[str, str, str]] = []
        size = 0
        for each in sorted(self._listed(), key=lambda each: each.name):
            if each.name <= after:
                continue
            entry = (each.name, each.user, each.nodes.fold())
            size += sum(map(len, entry))
            if part and size > _MOST_LISTED:
                return ReservationList(found=tuple(part), more=True)
            part.append(entry)
        return ReservationList(found=tuple(part), more=False)

    def _is_there(self, name: str, user: str, nodes: NodeSet) -> bool:
        found = self._find(name)
        if found is not None and (found.user, found.nodes) != (user, nodes):
            raise VerbRefused(Outcome.FAILED, f"there is a reservation {name} for others")
        return found is not None

    def _create(self, name: str, user: str, nodes: NodeSet) -> bool:
        """Whether this made it, and not the same request at the same time."""
        what = (f"reservationname={name}", f"users={user}", f"nodes={nodes.fold()}")
        when = (f"starttime={_BEGIN}", f"duration={_DURATION}")
        try:
            self._scontrol("create", "reservation", *what, *when)
        except VerbRefused as refusal:
            if refusal.answer.outcome is not Outcome.FAILED or not self._is_there(
                name, user, nodes
            ):
                raise
            return False
        return True

    def _take_back(self, name: str) -> None:
        try:
            self._delete(name)
        except VerbRefused as refusal:
            message = f"the reservation {name} was made and can't be removed: {refusal}"
            raise VerbRefused(Outcome.UNSURE, message) from None

    def _find(self, name: str) -> Listed | None:
        return next((each for each in self._listed() if each.name == name), None)

    def _listed(self) -> Iterator[Listed]:
        text = self._scontrol("-a", "-o", "show", "reservation")
        return filter(None, map(_read, text.splitlines()))

    def _delete(self, name: str) -> None:
        self._scontrol("delete", f"reservationname={name}")

    def _check_jobs(self, user: str, nodes: NodeSet) -> None:
        lines = self._squeue("-h", "-a", "--local", "-w", nodes.fold(), "-o", "%u %T %i")
        others = []
        for line in lines.splitlines():
            owner, state, job = (*line.split(), "", "", "")[:3]
            if owner != user and state != _WAITING:
                others.append(job)
        if others:
            named = ", ".join(others[:_MOST_NAMED])
            message = f"jobs of others are on these nodes, running, suspended or ending: {named}"
            raise VerbRefused(Outcome.FAILED, message)


def _read(line: str) -> Listed | None:
    """One line of `scontrol -o show reservation`. A comment of others stands at its end."""
    fields: dict[str, str] = {}
    for name, value in _FIELD.findall(line):
        fields.setdefault(name, value)
    name = fields.get("ReservationName", "")
    if not line.startswith("ReservationName=") or not is_claim_reservation(name):
        return None
    alone = (
        _PERSON.fullmatch(fields.get("Users", "")) is not None
        and fields.get("Flags") == _FLAGS
        and all(fields.get(each, "") in _NOTHING for each in _LIMITED_BY)
    )
    nodes = fields.get("Nodes", "")
    try:
        found = NodeSet.parse("" if nodes in _NOTHING else nodes)
    except ValueError:
        found, alone = NodeSet(), False
    return Listed(name, fields["Users"] if alone else "", found)
