"""What the node's TCP counted, from `/proc/net/snmp` and `/proc/net/netstat`."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from lattice.domain.jobfacts import TransportFact
from lattice.domain.kerneltext import figure
from lattice.probes.reading import read_text


def transport_of(proc: Path) -> TransportFact | None:
    """Since the node started; None where nothing is told."""
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
    """Pairs of lines, names and then numbers; a pair that does not fit together is left out."""
    found: dict[str, dict[str, float]] = {}
    lines = text.splitlines()
    for heads, values in pairwise(lines):
        kind, colon, names = heads.partition(":")
        again, _, told = values.partition(":")
        if not colon or again != kind or kind in found:
            continue
        words, numbers = names.split(), [figure(each) for each in told.split()]
        if len(words) == len(numbers) == len(set(words)) and not any(map(str.isdigit, words)):
            pairs = zip(words, numbers, strict=True)
            # A limit may be -1, which is no count.
            found[kind] = {name: float(each) for name, each in pairs if each is not None}
    return found
