"""What is moved, against what could be: of each node, between nodes, over NVLink."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from lattice.domain.counters import MOST_PEERS
from lattice.domain.jobfacts import FactAbsence, FactKind, GpuFact, LinkFact, PeerFact
from lattice.domain.metric import Absence, Sample, labelled
from lattice.features.diag.model import Finding, Lack, Sense, Verdict
from lattice.features.diag.rules.bandwidth import Bandwidth
from lattice.features.diag.rules.between_nodes import BetweenNodes
from lattice.features.diag.rules.engine import verdict_of
from lattice.features.diag.rules.gpu_traffic import GpuTraffic
from tests.unit.features.diag.wards import NOW, Ward, healthy, link, refact

GB = 1e9


def moving(ward: Ward, place: int, gigabytes_s: float, **changes: Any) -> None:
    """One port of 200 Gbit/s that moved so much a second, both ways together, over 100 s."""
    node = ward[place]
    half = gigabytes_s * GB * 100 / 2
    refact(node, links=(link(rx_bytes=1e12 + half, tx_bytes=1e12 + half, **changes),))
    assert node.earlier is not None
    node.earlier = replace(node.earlier, links=(link(rx_bytes=1e12, tx_bytes=1e12, **changes),))


def told(ward: Ward, rule: type = Bandwidth) -> list[Finding]:
    return list(rule().judge(ward.case))


@pytest.mark.spec("SRC-2")
def test_without_counts_and_rates_it_is_unknown_with_the_reason() -> None:
    ward = healthy(5)
    for each in ward.nodes:
        refact(each, links=())
        each.absences = {
            name: Absence(name, "no helper runs here", "ENOENT")
            for name in ("network_tx_bytes_total", "network_rx_bytes_total")
        }
    (found,) = told(ward)
    assert (found.verdict, found.measured, found.target) == (Verdict.UNKNOWN, None, None)
    assert found.reason == "no helper runs here (ENOENT)"


@pytest.mark.spec("SRC-2")
def test_a_node_that_tells_facts_alone_says_why_there_is_no_rate() -> None:
    ward = healthy(5, nodes=1)
    absence = FactAbsence(FactKind.LINKS, "a network driver does not answer")
    refact(ward[0], links=(), absences=(absence,))
    case = replace(ward.case, sights={})
    (found,) = Bandwidth().judge(case)
    assert (found.verdict, found.reason) == (
        Verdict.UNKNOWN,
        "a network driver does not answer",
    )


@pytest.mark.spec("DIAG-2")
def test_each_node_is_measured_against_its_own_links() -> None:
    ward = healthy(5, nodes=3)
    for place, rate in enumerate((40.0, 20.0, 30.0)):
        moving(ward, place, rate)
    (found,) = told(ward)
    assert (found.verdict, found.sense, found.unit) == (Verdict.OK, Sense.OF, "bytes/s")
    assert found.measured == pytest.approx(30 * GB)
    assert found.target == pytest.approx(50 * GB), "200 Gbit/s, both ways"
    assert found.evidence == "n1 40 GB/s, n2 20 GB/s, n3 30 GB/s, sent and received over 100 s"
    assert found.source == "host_local_probe"


@pytest.mark.spec("DIAG-2")
def test_a_slower_link_is_that_much_less_to_be_had() -> None:
    """The fastest link of the job is not what every node could do."""
    ward = healthy(5, nodes=2)
    moving(ward, 0, 40.0)
    moving(ward, 1, 1.0, speed_bits=1e10)
    (found,) = told(ward)
    assert found.target == pytest.approx((50 + 2.5) / 2 * GB)


@pytest.mark.spec("DIAG-2")
def test_all_links_of_a_node_count_together() -> None:
    ward = healthy(5, nodes=1)
    moving(ward, 0, 40.0)
    first, before = ward[0].facts, ward[0].earlier
    assert first is not None
    assert before is not None
    refact(ward[0], links=(*first.links, replace(first.links[0], name="hsn1")))
    ward[0].earlier = replace(before, links=(*before.links, replace(before.links[0], name="hsn1")))
    (found,) = told(ward)
    assert (found.measured, found.target) == pytest.approx((80 * GB, 100 * GB))


@pytest.mark.spec("DIAG-2")
def test_of_many_nodes_the_least_and_the_most_are_named() -> None:
    ward = healthy(5, nodes=16)
    for place in range(16):
        moving(ward, place, 10.0 + place)
    (found,) = told(ward)
    assert found.evidence == "from 10 GB/s (n1) to 25 GB/s (n16), sent and received over 100 s"
    assert str(found.covered) == "16/16 nodes"


@pytest.mark.spec("SRC-2", "DIAG-2")
def test_a_link_that_does_not_tell_its_speed_has_no_target_and_that_is_said() -> None:
    ward = healthy(5, nodes=2)
    moving(ward, 0, 4.0)
    moving(ward, 1, 2.0, speed_bits=None)
    (found,) = told(ward)
    assert found.measured == pytest.approx(3 * GB)
    assert found.target is None
    assert found.evidence.endswith("; how fast the links of n2 are is not told")


@pytest.mark.spec("DIAG-2")
def test_a_port_without_a_speed_that_carries_nothing_does_not_matter() -> None:
    ward = healthy(5, nodes=1)
    moving(ward, 0, 4.0)
    assert ward[0].facts is not None
    assert ward[0].earlier is not None
    idle: LinkFact = link("dummy0", speed_bits=None, rx_bytes=7.0, tx_bytes=7.0)
    refact(ward[0], links=(*ward[0].facts.links, idle))
    ward[0].earlier = replace(ward[0].earlier, links=(*ward[0].earlier.links, idle))
    (found,) = told(ward)
    assert (found.measured, found.target) == pytest.approx((4 * GB, 50 * GB))


@pytest.mark.spec("DIAG-2")
def test_where_ports_do_not_count_the_rates_of_the_node_stand() -> None:
    ward = healthy(5, nodes=1)
    bare = link(rx_bytes=None, tx_bytes=None, of_job=None)
    refact(ward[0], links=(bare,))
    ward[0].earlier = None
    (found,) = told(ward)
    assert (found.measured, found.target) == pytest.approx((1 * GB, 50 * GB))
    assert found.evidence == "n1 1 GB/s, sent and received over 30 s"


@pytest.mark.spec("DIAG-2")
def test_a_port_that_was_begun_anew_is_not_counted_below_zero() -> None:
    ward = healthy(5, nodes=1)
    moving(ward, 0, 4.0)
    refact(ward[0], links=(link(rx_bytes=5.0, tx_bytes=5.0, of_job=None),))
    (found,) = told(ward)
    assert found.measured == pytest.approx(1 * GB), "the node's own rates"


# Between nodes.


def peers_of(ward: Ward, sent: Mapping[tuple[int, int], float], over_s: float = 10) -> None:
    """Node N has the address 10.0.0.N; since the earlier reading it sent this to others."""
    for number, each in enumerate(ward.nodes, 1):
        assert each.facts is not None
        now = tuple(
            PeerFact(address=f"10.0.0.{to}", sent_bytes=1e9 + rate * over_s, received_bytes=5.0)
            for (sender, to), rate in sent.items()
            if sender == number
        )
        addresses = (f"10.0.0.{number}", "172.17.0.1")
        each.facts = replace(each.facts, peers=now, addresses=addresses)
        before = tuple(replace(peer, sent_bytes=1e9) for peer in now)
        each.earlier = replace(each.facts, time=each.facts.time - over_s, peers=before)


@pytest.mark.spec("DIAG-2", "SRC-1")
def test_what_nodes_send_each_other_by_tcp() -> None:
    ward = healthy(5, nodes=3)
    peers_of(ward, {(1, 2): 3 * GB, (2, 1): 1 * GB, (1, 9): 50 * GB})
    (found,) = told(ward, BetweenNodes)
    assert (found.verdict, found.measured, found.sense) == (Verdict.OK, 3 * GB, Sense.OF)
    assert found.evidence == (
        "n1 to n2 3 GB/s, n2 to n1 1 GB/s (by TCP, without RDMA; eBPF; links 25.1 GB/s)"
    )
    peers_of(ward, {(1, 2): GB, (2, 3): 2 * GB, (3, 1): GB, (1, 3): GB})
    (found,) = told(ward, BetweenNodes)
    assert found.evidence.startswith("n2 to n3 2 GB/s is the most of 4 directions")
    peers_of(ward, {})
    (found,) = told(ward, BetweenNodes)
    assert (found.measured, found.verdict) == (0.0, Verdict.OK)
    assert "send each other nothing just now" in found.evidence


@pytest.mark.spec("SRC-2")
def test_an_address_that_several_nodes_have_and_a_peer_that_was_left_out_are_not_counted() -> None:
    ward = healthy(5, nodes=2)
    peers_of(ward, {(1, 2): GB})
    facts, earlier = ward[0].facts, ward[0].earlier
    assert facts is not None
    assert earlier is not None
    bridge = PeerFact(address="172.17.0.1", sent_bytes=9e12, received_bytes=0.0)
    ward[0].facts = replace(facts, peers=(*facts.peers, bridge))
    (found,) = told(ward, BetweenNodes)
    assert found.measured == GB
    others = tuple(
        PeerFact(address=f"10.9.0.{each}", sent_bytes=1e12, received_bytes=0.0)
        for each in range(MOST_PEERS)
    )
    ward[0].earlier = replace(earlier, peers=others)
    (found,) = told(ward, BetweenNodes)
    assert found.measured == 0.0


@pytest.mark.spec("DIAG-2")
def test_what_a_silent_node_sent_is_known_from_whom_it_reached() -> None:
    ward = healthy(5, nodes=2)
    peers_of(ward, {(1, 2): GB, (2, 1): GB})
    first, second = ward[0], ward[1]
    assert first.facts is not None
    assert first.earlier is not None
    assert second.facts is not None
    (peer,) = first.facts.peers
    first.facts = replace(first.facts, peers=(replace(peer, received_bytes=5 + 20 * GB),))
    lost = FactAbsence(FactKind.PEERS, "the kernel has no BTF")
    second.facts = replace(second.facts, peers=(), absences=(lost,))
    (found, why) = told(ward, BetweenNodes)
    assert found.measured == 2 * GB
    assert found.evidence.startswith("n2 to n1 2 GB/s, n1 to n2 1 GB/s")
    assert (why.verdict, why.reason) == (Verdict.UNKNOWN, "the kernel has no BTF")


@pytest.mark.spec("SRC-2")
def test_what_goes_between_nodes_is_not_guessed() -> None:
    ward = healthy(5, nodes=2)
    (found,) = told(ward, BetweenNodes)
    assert (found.verdict, found.measured) == (Verdict.UNKNOWN, None)
    peers_of(ward, {(1, 2): GB})
    for each in ward.nodes:
        each.earlier = None
    started = ward.case.started
    (found,) = told(ward, BetweenNodes)
    assert found.measured == pytest.approx((1e9 + 10 * GB) / (NOW - started))
    assert "since the job began; eBPF" in found.evidence
    for each in ward.nodes:
        assert each.facts is not None
        each.facts = replace(each.facts, time=started + 1)
    (found,) = told(ward, BetweenNodes)
    assert (found.measured, found.lack) == (None, Lack.TOO_EARLY)
    assert told(healthy(5, nodes=1), BetweenNodes) == []


# NVLink.


def linked(moved: float, most: float | None) -> Ward:
    """Every card of two nodes moves so much, and could `most`."""
    ward = healthy(5, nodes=2)
    for each in ward.nodes:
        each.nvlink_bytes_s = moved
        cards = tuple(GpuFact(uuid=uuid, health="ok", nvlink_bytes_s=most) for uuid in each.cards)
        refact(each, gpus=cards)
    return ward


@pytest.mark.spec("DIAG-2")
def test_nvlink_is_measured_against_what_its_links_can_carry() -> None:
    (found,) = told(linked(850e9, 956e9), GpuTraffic)
    assert (found.title, found.verdict, found.sense) == ("NVLink", Verdict.OK, Sense.OF)
    assert (found.measured, found.target) == pytest.approx((850e9, 956e9))
    assert found.evidence == "both ways, on average over 8 GPUs"
    assert found.source == "host_local_probe"


@pytest.mark.spec("DIAG-2")
def test_the_links_of_amd_are_named_as_what_they_are() -> None:
    ward = linked(300e9, 896e9)
    ward[0].links = "xgmi"
    nvlink, xgmi = told(ward, GpuTraffic)
    assert [nvlink.title, xgmi.title] == ["NVLink", "XGMI"]
    assert [each.node for each in xgmi.subjects] == ["n1"]
    assert (xgmi.measured, xgmi.target) == pytest.approx((300e9, 896e9))


@pytest.mark.spec("SRC-2", "DIAG-2")
def test_cards_of_amd_without_xgmi_have_one_line_with_the_reason() -> None:
    ward = healthy(5)
    for each in ward.nodes:
        name = "gpu_xgmi_bytes_total"
        each.absences = {name: Absence(name, "this card does not tell it")}
    (found,) = told(ward, GpuTraffic)
    assert (found.title, found.reason) == ("XGMI", "this card does not tell it")


@pytest.mark.spec("SRC-2", "DIAG-2")
def test_without_the_speed_of_its_links_nvlink_has_no_target_and_that_is_said() -> None:
    ward = linked(850e9, 956e9)
    refact(ward[1], gpus=())
    (found,) = told(ward, GpuTraffic)
    assert found.measured == pytest.approx(850e9)
    assert found.target is None
    assert found.evidence.endswith("can carry is not told")


@pytest.mark.spec("SRC-2")
def test_cards_without_nvlink_are_a_dash_with_the_reason() -> None:
    ward = healthy(5)
    for each in ward.nodes:
        name = "gpu_nvlink_bytes_total"
        each.absences = {name: Absence(name, "this card does not tell it")}
    (found,) = told(ward, GpuTraffic)
    assert (found.verdict, found.lack) == (Verdict.UNKNOWN, Lack.NOT_OFFERED)
    assert found.reason == "this card does not tell it"
    assert verdict_of(ward.judged()) is Verdict.OK


@pytest.mark.spec("SRC-2")
def test_the_first_look_at_nvlink_has_no_rate() -> None:
    case = linked(850e9, 956e9).case
    snapshots = {node: replace(sight, before=None) for node, sight in case.sights.items()}
    (found,) = GpuTraffic().judge(replace(case, sights=snapshots))
    assert (found.verdict, found.measured, found.lack) == (
        Verdict.UNKNOWN,
        None,
        Lack.TOO_EARLY,
    )


def test_a_job_without_gpus_has_no_line_about_nvlink() -> None:
    assert told(healthy(5, gpus=False), GpuTraffic) == []


@pytest.mark.spec("DIAG-4")
def test_occupancy_is_of_a_hundred_percent() -> None:
    case = healthy(5, nodes=1).case
    (sight,) = case.sights.values()
    busy = Sample("gpu_sm_occupancy_percent", 40.0, NOW, labels=labelled(gpu_uuid="GPU-100000"))
    now = replace(sight.now, readings=(*sight.now.readings, busy))
    snapshots = {sight.node: replace(sight, now=now)}
    found = next(
        each
        for each in GpuTraffic().judge(replace(case, sights=snapshots))
        if each.title == "SM occupancy"
    )
    assert (found.measured, found.target, found.sense) == (40.0, 100.0, Sense.OF)
    assert found.source == "site_exporter"
