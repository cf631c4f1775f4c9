"""Which peers the helper reports for a job: its own, summed, the busiest; or why none."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence

import pytest

from lattice.domain.counters import MOST_PEERS, PEERS, PeerCounters, peers_of
from lattice.helper.conversation import NoValues
from lattice.helper.latency import LatencyGroup
from lattice.helper.peers import JobPeers, PeerRecord

SINCE = 1_794_700_000.0
GROUPS = {42: LatencyGroup(900, SINCE + 5), 43: LatencyGroup(901, SINCE - 5)}
ONE, TWO = bytes(10) + b"\xff\xff\x0a\0\0\x01", bytes(15) + b"\x02"


def reader(records: Sequence[PeerRecord]) -> JobPeers:
    return JobPeers(lambda: records, GROUPS.get, since=SINCE)


def peers(records: Sequence[PeerRecord], job: int = 42) -> list[PeerCounters] | None:
    rows = reader(records).read((PEERS,), (job,))[PEERS]
    return peers_of(rows[job], GROUPS[job].inode)


@pytest.mark.spec("DIAG-2")
def test_connections_of_one_job_are_summed_by_address() -> None:
    records = [
        PeerRecord(900, ONE, 10, 1),
        PeerRecord(900, TWO, 5, 500),
        PeerRecord(901, ONE, 7, 7),
        PeerRecord(900, ONE, 20, 2),
    ]
    assert peers(records) == [PeerCounters(TWO, 5, 500), PeerCounters(ONE, 30, 3)]
    assert peers([]) == []
    assert reader(records).read((PEERS,), (7,))[PEERS] == {}


def test_only_the_busiest_are_reported() -> None:
    many = [PeerRecord(900, at.to_bytes(16, "big"), at, 0) for at in range(1, MOST_PEERS + 9)]
    found = peers(many)
    assert found is not None
    assert (len(found), found[0].sent, found[-1].sent) == (MOST_PEERS, MOST_PEERS + 8, 9)


@pytest.mark.spec("SRC-2")
def test_a_job_that_is_older_than_the_program_has_no_numbers() -> None:
    assert peers([PeerRecord(901, ONE, 7, 7)], 43) is None


@pytest.mark.spec("SRC-2")
def test_why_there_are_none_is_reported() -> None:
    def refused() -> list[PeerRecord]:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    with pytest.raises(NoValues, match="refused: Operation not permitted"):
        JobPeers(refused, GROUPS.get).read((PEERS,), (42,))
    with pytest.raises(NoValues, match="the kernel has no BTF"):
        JobPeers(None, GROUPS.get, reason="the kernel has no BTF").read((PEERS,), (42,))
