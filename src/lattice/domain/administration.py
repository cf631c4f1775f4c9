"""What the gate changes in the scheduler: typed questions, their bounds, and the port. Pure.

The gate runs the scheduler's own programs as its administrator, and builds their arguments itself
from these fields. So no field is an option, a list in one text, or a name that means several.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Protocol, TypeAlias

from lattice.base.strictjson import read_fields, read_json
from lattice.domain.nodeset import NodeSet
from lattice.domain.reservation import RESERVATION_PREFIX
from lattice.domain.tenants import LimitChange

MOST_NODES = 512
"""In one question; more take several."""
LONGEST_REASON = 200
_LONGEST_NAMES = 24 * 1024
"""Of the nodes of one reservation, so that a list of it fits in an answer."""
_CLUSTER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}", re.ASCII)
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}", re.ASCII)
_TENANT = re.compile(r"[a-z0-9_][a-z0-9_.-]{0,63}", re.ASCII)
_USER = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}", re.ASCII)
_RESERVATION = re.compile(re.escape(RESERVATION_PREFIX) + r"[a-z0-9-]{1,64}", re.ASCII)
_MANY = frozenset({"all", "localhost"})
"""Slurm takes these names for other nodes than one of that name."""
_ABOVE_ALL = "root"


class VerbGroup(StrEnum):
    """What a site allows its gate, each by itself."""

    NODES = "nodes"
    TENANTS = "tenants"
    CLAIMS = "claims"


class NodeChange(StrEnum):
    DRAIN = "drain"
    DISABLE = "disable"
    RESUME = "resume"


class TenantAct(StrEnum):
    CREATE = "create"
    UPDATE = "update"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeQuestion:
    """Take these nodes out of service, or put them back."""

    cluster: str
    change: NodeChange
    nodes: tuple[str, ...]
    reason: str

    def fault(self) -> str:
        if fault := _cluster_fault(self.cluster) or nodes_fault(self.nodes):
            return fault
        if self.change is NodeChange.RESUME:
            return "putting a node back takes no reason" if self.reason else ""
        if not self.reason.strip() or len(self.reason) > LONGEST_REASON:
            return f"a reason has between 1 and {LONGEST_REASON} characters"
        return "" if self.reason.isprintable() else "the reason has an unprintable character"

    def summary(self) -> str:
        """For the log."""
        return f"{self.change.value} {NodeSet(self.nodes).fold()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantQuestion:
    """Make a top account, or change limits of an account. None leaves a limit as it is."""

    cluster: str
    act: TenantAct
    name: str
    max_nodes: int | None
    max_gpus: int | None
    max_jobs: int | None

    @property
    def change(self) -> LimitChange:
        return LimitChange(max_nodes=self.max_nodes, max_gpus=self.max_gpus, max_jobs=self.max_jobs)

    def fault(self) -> str:
        if fault := _cluster_fault(self.cluster):
            return fault
        if not _TENANT.fullmatch(self.name) or self.name == _ABOVE_ALL:
            return "no name of a tenant"
        if not self.change.sound:
            return "a limit is out of range"
        return "no limit is given" if self.act is TenantAct.UPDATE and self.change.empty else ""

    def summary(self) -> str:
        """For the log."""
        limits = (
            f"{name}={value}" for name, value in asdict(self.change).items() if value is not None
        )
        return " ".join((self.act.value, self.name, *limits))


@dataclass(frozen=True, slots=True, kw_only=True)
class RightsQuestion:
    """What this gate may change, and as whom."""

    def fault(self) -> str:
        return ""

    def summary(self) -> str:
        """For the log."""
        return "rights"


@dataclass(frozen=True, slots=True, kw_only=True)
class MakeReservation:
    """Reserve these nodes for the jobs of one person alone."""

    cluster: str
    name: str
    user: str
    nodes: tuple[str, ...]

    def fault(self) -> str:
        if fault := _cluster_fault(self.cluster) or _reservation_fault(self.name):
            return fault
        if not _USER.fullmatch(self.user) or self.user == _ABOVE_ALL:
            return "no name of a person"
        if fault := nodes_fault(self.nodes):
            return fault
        return "the names of the nodes are too long" if _too_long(self.nodes) else ""

    def summary(self) -> str:
        """For the log."""
        return f"reserve {self.name} {self.user} {NodeSet(self.nodes).fold()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveReservation:
    """Remove a reservation that Lattice made."""

    cluster: str
    name: str

    def fault(self) -> str:
        return _cluster_fault(self.cluster) or _reservation_fault(self.name)

    def summary(self) -> str:
        """For the log."""
        return f"release {self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListReservations:
    """The reservations that Lattice made, a part at a time."""

    cluster: str
    after: str
    """The last name of the part before; empty: the first part."""

    def fault(self) -> str:
        if fault := _cluster_fault(self.cluster):
            return fault
        return _reservation_fault(self.after) if self.after else ""

    def summary(self) -> str:
        """For the log."""
        return "reservations"


AdministrationQuestion: TypeAlias = (
    NodeQuestion
    | TenantQuestion
    | RightsQuestion
    | MakeReservation
    | RemoveReservation
    | ListReservations
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GateRights:
    """The answer about rights. `fault`: why it can use none of them; empty if it can."""

    groups: tuple[VerbGroup, ...]
    user: str
    """The Unix user that changes the scheduler; empty if it is not known."""
    fault: str = ""

    def written(self) -> str:
        return json.dumps(asdict(self))


def read_rights(text: str) -> GateRights:
    """Raises `ValueError`."""
    return read_fields(read_json(text.encode()), GateRights)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservationList:
    """One part of the answer about reservations."""

    found: tuple[tuple[str, str, str], ...]
    """Name, user and folded nodes of each, by name. See `Reservation` for an empty user."""
    more: bool

    def written(self) -> str:
        return json.dumps(asdict(self))


def read_reservation_list(text: str) -> ReservationList:
    """Raises `ValueError`."""
    return read_fields(read_json(text.encode()), ReservationList)


def is_claim_reservation(name: str) -> bool:
    """Whether this is the name of a reservation that Lattice makes."""
    return _RESERVATION.fullmatch(name) is not None


def nodes_fault(nodes: tuple[str, ...]) -> str:
    """Why these are not the names of single nodes, or an empty text."""
    if not 0 < len(nodes) <= MOST_NODES:
        return f"between 1 and {MOST_NODES} nodes at once"
    if len(set(nodes)) != len(nodes):
        return "a node stands twice"
    return "" if all(map(_is_node, nodes)) else "a name is none of a single node"


def _is_node(name: str) -> bool:
    return _NODE.fullmatch(name) is not None and name.lower() not in _MANY


def _cluster_fault(cluster: str) -> str:
    return "" if _CLUSTER.fullmatch(cluster) else "no name of a cluster"


def _reservation_fault(name: str) -> str:
    return "" if is_claim_reservation(name) else "no name of a reservation of Lattice"


def _too_long(nodes: tuple[str, ...]) -> bool:
    return sum(map(len, nodes)) > _LONGEST_NAMES


def in_parts(nodes: Iterable[str]) -> Iterable[tuple[str, ...]]:
    """The nodes, as many as one question may name at a time."""
    names = tuple(nodes)
    return (names[at : at + MOST_NODES] for at in range(0, len(names), MOST_NODES))


class Administration(Protocol):
    """Changes the scheduler. `by` is the verified caller, for the record.

    Each method raises `Unavailable` while the gate or the scheduler does not answer, or its
    subclass `Unsure` if the change may have happened. It raises `ConfigurationError` if the site
    does not allow it, with what to do.
    """

    async def change_nodes(
        self, change: NodeChange, nodes: NodeSet, reason: str, *, by: str
    ) -> None:
        """Take nodes out of service, or put them back."""

    async def change_tenant(
        self, act: TenantAct, name: str, change: LimitChange, *, by: str
    ) -> None:
        """Make a tenant, or change its limits."""

    async def rights(self) -> GateRights:
        """What is allowed here."""
