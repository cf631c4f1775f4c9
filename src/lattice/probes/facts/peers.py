"""What a job sends to which address, as the root helper knows it, and the node's own addresses."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from pathlib import Path

from lattice.domain.counters import PEERS, BadTelling, CounterLine, CountersUnavailable, peers_of
from lattice.domain.jobfacts import FactAbsence, FactKind, PeerFact
from lattice.domain.nodejobs import JobIdentity
from lattice.probes.kernel_files import read_text

_LOCAL = re.compile(r"\s+\|-- ([0-9.]{7,15})\n\s+/32 host LOCAL\b", re.ASCII)
_V6 = re.compile(r"([0-9a-f]{32}) ", re.ASCII)
_MOST_ADDRESSES = 64
_LARGEST_TABLE = 16 * 1024 * 1024
OLDER = "the job is older than the program that counts it"
NOT_YET = "lattice-helper finds no control group of this job"


def peer_facts(
    line: CounterLine, identity: JobIdentity
) -> tuple[tuple[PeerFact, ...], tuple[FactAbsence, ...]]:
    """The facts, or why there are none. Blocks for at most 2 s."""
    try:
        table = line.ask((PEERS,), (identity.job_id,)).of(PEERS)
        if identity.job_id not in table:
            return (), (FactAbsence(FactKind.PEERS, NOT_YET),)
        found = peers_of(table[identity.job_id], identity.inode)
    except CountersUnavailable as error:
        return (), (FactAbsence(FactKind.PEERS, error.reason, last_error=error.last_error),)
    except BadTelling as error:
        reason = "lattice-helper told what can't be"
        return (), (FactAbsence(FactKind.PEERS, reason, last_error=str(error)),)
    if found is None:
        return (), (FactAbsence(FactKind.PEERS, OLDER),)
    facts = tuple(
        PeerFact(
            address=address_text(each.address),
            sent_bytes=float(each.sent),
            received_bytes=float(each.received),
        )
        for each in found
    )
    return facts, ()


def address_text(raw: bytes) -> str:
    """IPv4 in its own form, also where a socket of IPv6 has it."""
    found = ipaddress.IPv6Address(raw)
    return str(found.ipv4_mapped or found)


def own_addresses(proc: Path) -> tuple[str, ...]:
    """Of the node, without loopback and those that are valid on one link only."""
    found = sorted(set(_addresses(proc)), key=lambda each: (each.version, int(each)))
    usable = [each for each in found if not (each.is_loopback or each.is_link_local)]
    return tuple(map(str, usable[:_MOST_ADDRESSES]))


def _addresses(proc: Path) -> Iterator[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    for each in _LOCAL.findall(read_text(f"{proc}/net/fib_trie", _LARGEST_TABLE) or ""):
        try:
            yield ipaddress.IPv4Address(each)
        except ValueError:
            continue
    for line in (read_text(f"{proc}/net/if_inet6") or "").splitlines():
        if found := _V6.match(line):
            yield ipaddress.IPv6Address(bytes.fromhex(found[1]))
