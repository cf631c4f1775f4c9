"""All links of a node and its TCP, and their counts since a job was first seen.

Slingshot ports are read from `/sys/class/cxi`: the counters of the Cassini adapter. Each file of
`telemetry` is a count and its time, `90049@1697554302.123456789`. Pauses are counted in cycles of 1
GHz, which are nanoseconds.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from lattice.domain.jobfacts import (
    FactAbsence,
    FactKind,
    LinkCounts,
    LinkFact,
    LinkKind,
    TransportFact,
)
from lattice.domain.kerneltext import figure
from lattice.probes.facts.ethernet import downs_of, ethernet_links
from lattice.probes.facts.infiniband import infiniband_links
from lattice.probes.kernel_files import carries, names_in, read_text, total, word

_COUNT = re.compile(r"([0-9]{1,18})@[0-9]{1,12}\.[0-9]{1,9}", re.ASCII)
_SPEED = re.compile(r"[A-Za-z]{2}_?([0-9]{2,3})G", re.ASCII)
_STATES = {"up": True, "down": False}
_PAUSED = (*(f"hni_rx_paused_{each}" for each in range(8)), "hni_rx_paused_std")
_FIRST_BITS = 200e9


def slingshot_links(sys: Path) -> list[LinkFact]:
    """Every adapter that is up, or was."""
    root = f"{sys}/class/cxi"
    found = (_link(sys, f"{root}/{name}/device", name) for name in names_in(root))
    return [each for each in found if each is not None]


def _link(sys: Path, device: str, name: str) -> LinkFact | None:
    second = os.path.isdir(f"{device}/port/0")  # noqa: PTH112
    state = _STATES.get(word(f"{device}/port/{'0/link/state' if second else 'link'}").lower())

    def counted(counter: str) -> float | None:
        return count_of(word(f"{device}/telemetry/{counter}"))

    received, sent = counted("hni_sts_rx_ok_octets"), counted("hni_sts_tx_ok_octets")
    if state is None or (not state and not carries(received, sent)):
        return None
    waits = total(*(counted(each) for each in _PAUSED))
    return LinkFact(
        name=name,
        kind=LinkKind.SLINGSHOT,
        up=state,
        speed_bits=speed_of(word(f"{device}/port/{'0/link/speed' if second else 'speed'}"))
        if state
        else None,
        # An adapter of the second generation may be connected to a switch of the first.
        best_speed_bits=None if second else _FIRST_BITS,
        rx_bytes=received,
        tx_bytes=sent,
        errors=counted("hni_pcs_uncorrected_cw"),
        waits=waits,
        waits_unit="ns" if waits is not None else "",
        downs=_downs(sys, name),
    )


def count_of(text: str) -> float | None:
    """Parses `90049@1697554302.123456789`."""
    found = _COUNT.fullmatch(text)
    return float(found[1]) if found else None


def speed_of(text: str) -> float | None:
    """Parses `BS_200G` or `bs200G`."""
    found = _SPEED.fullmatch(text)
    return float(found[1]) * 1e9 if found and int(found[1]) else None


def _downs(sys: Path, name: str) -> float | None:
    root = f"{sys}/class/net"
    for interface in names_in(root):
        if name in names_in(f"{root}/{interface}/device/cxi"):
            return downs_of(f"{root}/{interface}")
    return None


def transport_of(proc: Path) -> TransportFact | None:
    """Counts since the node started; None if there are none."""
    snmp = read_pairs(read_text(f"{proc}/net/snmp") or "")
    netstat = read_pairs(read_text(f"{proc}/net/netstat") or "")
    tcp, ip, extended = snmp.get("Tcp", {}), snmp.get("Ip", {}), netstat.get("IpExt", {})
    found = TransportFact(
        sent_segments=tcp.get("OutSegs"),
        retransmits=tcp.get("RetransSegs"),
        received_packets=ip.get("InReceives"),
        ecn_marks=extended.get("InCEPkts"),
    )
    return found if found != TransportFact() else None


def read_pairs(text: str) -> dict[str, dict[str, float]]:
    """Parses pairs of lines, names and then numbers; skips a pair that does not match."""
    found: dict[str, dict[str, float]] = {}
    lines = text.splitlines()
    for heads, values in pairwise(lines):
        kind, colon, names = heads.partition(":")
        again, _, rest = values.partition(":")
        if not colon or again != kind or kind in found:
            continue
        columns, numbers = names.split(), [figure(each) for each in rest.split()]
        if len(columns) == len(numbers) == len(set(columns)) and not any(map(str.isdigit, columns)):
            pairs = zip(columns, numbers, strict=True)
            # A limit may be -1, which is no count.
            found[kind] = {name: float(each) for name, each in pairs if each is not None}
    return found


_COUNTED = ("rx_bytes", "tx_bytes", "packets", "errors", "waits", "downs")
_SEGMENTS = ("sent_segments", "retransmits", "received_packets", "ecn_marks")
NO_LINKS = "the node has no network port that was ever used"
NO_TRANSPORT = "the kernel does not tell it"


@dataclass(frozen=True, slots=True)
class NetworkReading:
    """One reading. `at_s` is a monotonic time."""

    at_s: float
    links: tuple[LinkFact, ...]
    transport: TransportFact | None

    def absences(self) -> tuple[FactAbsence, ...]:
        """Why there are no facts of one kind."""
        links = () if self.links else (FactAbsence(FactKind.LINKS, NO_LINKS),)
        transport = () if self.transport else (FactAbsence(FactKind.TRANSPORT, NO_TRANSPORT),)
        return links + transport


@dataclass(frozen=True, slots=True)
class LinkProbe:
    """Reads the links. Blocks for as long as drivers take."""

    proc: Path
    sys: Path

    def read(self, at_s: float) -> NetworkReading:
        links = (
            *infiniband_links(self.sys),
            *slingshot_links(self.sys),
            *ethernet_links(self.sys),
        )
        return NetworkReading(at_s, links, transport_of(self.proc))


def since(before: NetworkReading, now: NetworkReading) -> NetworkReading:
    """The later reading with the counts between the two. A count that fell was reset: None."""
    earlier = {(each.kind, each.name): each for each in before.links}
    seconds = now.at_s - before.at_s
    if seconds <= 0:
        return now
    links = tuple(
        replace(each, of_job=_counts(earlier.get((each.kind, each.name)), each, seconds))
        for each in now.links
    )
    return NetworkReading(now.at_s, links, _transport(before.transport, now.transport, seconds))


def _counts(before: LinkFact | None, now: LinkFact, seconds: float) -> LinkCounts | None:
    if before is None:
        return None
    return LinkCounts(seconds=seconds, **_grown(before, now, _COUNTED))


def _transport(
    before: TransportFact | None, now: TransportFact | None, seconds: float
) -> TransportFact | None:
    if before is None or now is None:
        return now
    return TransportFact(seconds=seconds, **_grown(before, now, _SEGMENTS))


def _grown(before: object, now: object, names: Sequence[str]) -> dict[str, float | None]:
    grown: dict[str, float | None] = {}
    for name in names:
        was, is_now = getattr(before, name), getattr(now, name)
        fits = was is not None and is_now is not None and is_now >= was
        grown[name] = is_now - was if fits else None
    return grown
