"""Peers as facts: addresses as text, the node's own addresses, and why there is nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.domain.counters import (
    PEERS,
    CounterAnswer,
    CountersUnavailable,
    PeerCounters,
    Rows,
    peer_row,
)
from lattice.domain.jobfacts import FactKind
from lattice.domain.nodejobs import JobIdentity
from lattice.probes.facts.peers import NOT_YET, OLDER, address_text, own_addresses, peer_facts

JOB = JobIdentity("boot", 42, 900, 1.0)
FIRST = bytes(10) + b"\xff\xff\x0a\x4d\0\x01"
TRIE = """\
Main:
  +-- 0.0.0.0/0 3 0 5
        |-- 127.0.0.1
           /32 host LOCAL
        |-- 10.77.0.0
           /24 link UNICAST
        |-- 10.77.0.11
           /32 host LOCAL
        |-- 10.77.0.255
           /32 link BROADCAST
Local:
        |-- 10.77.0.11
           /32 host LOCAL
        |-- 999.1.1.1
           /32 host LOCAL
"""
V6 = """\
fd000000000000000000000000000002 02 40 00 80     eth0
00000000000000000000000000000001 01 80 10 80       lo
fe80000000000000a8bbccfffeddeeff 02 40 20 80     eth0
"""


class Line:
    def __init__(self, rows: dict[int, Rows] | str) -> None:
        self.rows = rows

    def ask(self, want: Sequence[str], jobs: Sequence[int]) -> CounterAnswer:
        assert (want, jobs) == ((PEERS,), (42,))
        if isinstance(self.rows, str):
            raise CountersUnavailable(self.rows, "why")
        return CounterAnswer({PEERS: self.rows})


@pytest.mark.spec("DIAG-2")
def test_peers_have_their_addresses_as_people_write_them() -> None:
    row = peer_row(900, PeerCounters(FIRST, 7, 8))
    other = peer_row(901, PeerCounters(FIRST, 1, 1))
    (fact,), absences = peer_facts(Line({42: [row, other]}), JOB)
    assert (fact.address, fact.sent_bytes, fact.received_bytes) == ("10.77.0.1", 7.0, 8.0)
    assert absences == ()
    assert address_text(bytes.fromhex("fd" + "00" * 14 + "02")) == "fd00::2"
    assert peer_facts(Line({42: []}), JOB) == ((), ())


@pytest.mark.spec("SRC-2")
@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ({}, NOT_YET),
        ({42: [[900]]}, OLDER),
        ({42: [[900, -1, 0, 0, 0]]}, "lattice-helper told what can't be"),
        ({42: [[1, 2, 3]]}, "lattice-helper told what can't be"),
        ("not there", "not there"),
    ],
    ids=range(5),
)
def test_what_is_not_known_has_a_reason(rows: dict[int, Rows] | str, reason: str) -> None:
    facts, (absence,) = peer_facts(Line(rows), JOB)
    assert (facts, absence.kind, absence.reason) == ((), FactKind.PEERS, reason)


def test_a_node_knows_its_own_addresses(tmp_path: Path) -> None:
    (tmp_path / "net").mkdir()
    assert own_addresses(tmp_path) == ()
    (tmp_path / "net/fib_trie").write_text(TRIE)
    (tmp_path / "net/if_inet6").write_text(V6)
    assert own_addresses(tmp_path) == ("10.77.0.11", "fd00::2")


@given(st.binary(min_size=16, max_size=16))
def test_any_address_has_a_text(raw: bytes) -> None:
    assert address_text(raw).isprintable()
