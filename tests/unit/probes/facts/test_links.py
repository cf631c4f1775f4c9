"""Network ports in the files of a node with all three kinds, whole and spoilt."""

from __future__ import annotations

import math
import shutil
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lattice.domain.jobfacts import FactKind, LinkFact, LinkKind, TransportFact
from lattice.probes.facts.infiniband import speed_of
from lattice.probes.facts.links import LinkProbe, NetworkReading, count_of, read_pairs, since
from lattice.probes.facts.links import speed_of as slingshot_speed_of
from tests.fakes.fact_trees import FactTree


@pytest.fixture
def tree(tmp_path: Path) -> FactTree:
    return FactTree(tmp_path)


def look(tree: FactTree, at_s: float = 1.0) -> NetworkReading:
    return LinkProbe(tree.proc, tree.sys).read(at_s)


def links(tree: FactTree) -> dict[str, LinkFact]:
    return {each.name: each for each in look(tree).links}


@pytest.mark.spec("DIAG-2")
def test_an_infiniband_port_that_trained_at_one_lane_is_below_its_best(tree: FactTree) -> None:
    slow = links(tree)["mlx5_1"]
    assert (slow.up, slow.speed_bits, slow.best_speed_bits) == (True, 2.5e9, 200e9)


@pytest.mark.spec("DIAG-2")
def test_two_lanes_may_be_the_cable_that_was_bought(tree: FactTree) -> None:
    tree.write("sys/class/infiniband/mlx5_0/ports/1/rate", "100 Gb/sec (2X HDR)\n")
    assert links(tree)["mlx5_0"].best_speed_bits is None


@pytest.mark.spec("DIAG-2")
def test_a_port_without_a_cable_is_no_link(tree: FactTree) -> None:
    found = links(tree)
    assert "mlx5_2" not in found
    assert "ens1f1" not in found
    tree.write("sys/class/net/ens1f1/statistics/rx_bytes", "12\n")
    assert links(tree)["ens1f1"].up is False
    assert links(tree)["ens1f1"].speed_bits is None


@pytest.mark.spec("DIAG-2")
def test_each_port_is_told_once_and_by_its_own_kind(tree: FactTree) -> None:
    found = links(tree)
    assert {name: each.kind for name, each in found.items()} == {
        "mlx5_0": LinkKind.INFINIBAND,
        "mlx5_1": LinkKind.INFINIBAND,
        "cxi0": LinkKind.SLINGSHOT,
        "cxi1": LinkKind.SLINGSHOT,
        "ens1f0": LinkKind.ETHERNET,
    }


@pytest.mark.spec("DIAG-2")
def test_infiniband_counts_words_waits_and_errors(tree: FactTree) -> None:
    port = links(tree)["mlx5_0"]
    assert port.speed_bits == 200e9
    assert (port.rx_bytes, port.tx_bytes, port.packets) == (1e9, 2e9, 3e6)
    assert (port.errors, port.waits, port.downs) == (6, 123456, 4)


@pytest.mark.spec("DIAG-2")
def test_slingshot_counts_pauses_of_all_classes(tree: FactTree) -> None:
    first, second = links(tree)["cxi0"], links(tree)["cxi1"]
    assert (first.speed_bits, first.best_speed_bits) == (200e9, 200e9)
    assert (first.waits, first.waits_unit, first.errors, first.downs) == (1500, "ns", 90049, 2)
    assert (second.speed_bits, second.best_speed_bits, second.waits) == (400e9, None, None)
    assert second.waits_unit == ""


@pytest.mark.spec("DIAG-2")
def test_ethernet_tells_speed_errors_flaps_and_marks_of_rdma(tree: FactTree) -> None:
    port = links(tree)["ens1f0"]
    assert (port.speed_bits, port.best_speed_bits) == (25e9, None)
    assert (port.rx_bytes, port.tx_bytes, port.packets, port.errors) == (1000, 2000, 30, 3)
    assert (port.downs, port.waits) == (3, 77)


@pytest.mark.spec("DIAG-2")
def test_a_kernel_that_counts_changes_only_counts_both_ways(tree: FactTree) -> None:
    (tree.sys / "class/net/ens1f0/carrier_down_count").unlink()
    assert links(tree)["ens1f0"].downs == 3


def test_a_node_that_is_a_namespace_has_the_ports_it_has(tree: FactTree) -> None:
    for name in ("ens1f0", "ens1f1"):
        shutil.rmtree(tree.sys / f"class/net/{name}/device")
    assert set(links(tree)) >= {"ens1f0", "docker0"}


@pytest.mark.spec("DIAG-2")
def test_tcp_tells_what_was_sent_again_and_what_was_marked(tree: FactTree) -> None:
    told = look(tree).transport
    assert told == TransportFact(
        sent_segments=5000, retransmits=25, received_packets=1000, ecn_marks=12
    )


@pytest.mark.spec("DIAG-2")
def test_what_a_job_saw_is_what_was_counted_since(tree: FactTree) -> None:
    before = look(tree, 10.0)
    tree.write("sys/class/net/ens1f0/statistics/rx_errors", "8\n")
    tree.write("sys/class/infiniband/mlx5_0/ports/1/counters/symbol_error", "0\n")
    tree.write("proc/net/snmp", "Tcp: OutSegs RetransSegs\nTcp: 6000 75\n")
    now = since(before, look(tree, 70.0))
    found = {each.name: each.of_job for each in now.links}
    ethernet, infiniband = found["ens1f0"], found["mlx5_0"]
    assert ethernet is not None
    assert (ethernet.seconds, ethernet.errors, ethernet.downs) == (60.0, 7.0, 0.0)
    # A counter that fell was set back: how much it counted is not known.
    assert infiniband is not None
    assert infiniband.errors is None
    assert now.transport == TransportFact(
        seconds=60.0, sent_segments=1000, retransmits=50, ecn_marks=0
    )
    assert since(look(tree, 70.0), look(tree, 70.0)).links[0].of_job is None


@pytest.mark.spec("DIAG-2")
def test_a_node_that_tells_nothing_says_so(tmp_path: Path) -> None:
    found = LinkProbe(tmp_path / "proc", tmp_path / "sys").read(1.0)
    assert (found.links, found.transport) == ((), None)
    assert [each.kind for each in found.absences()] == [FactKind.LINKS, FactKind.TRANSPORT]


@pytest.mark.spec("SRC-2")
def test_garbage_in_any_file_is_never_a_number_that_was_not_there(tree: FactTree) -> None:
    files, whole = tree.files(), links(tree)

    @given(st.binary(max_size=64), st.integers(0, len(files) - 1))
    @settings(deadline=None)
    def spoil(raw: bytes, which: int) -> None:
        before = files[which].read_bytes()
        files[which].write_bytes(b"x" + raw)
        try:
            found = links(tree)
        finally:
            files[which].write_bytes(before)
        for name, each in found.items():
            for field, value in asdict(each).items():
                if isinstance(value, float):
                    assert math.isfinite(value)
                    # A sum over fewer counters may be smaller, and never larger.
                    known = getattr(whole[name], field) if name in whole else None
                    assert known is None or value <= known

    spoil()


@pytest.mark.spec("SRC-2")
@given(st.text(max_size=60))
def test_only_what_the_kernel_writes_is_a_speed_or_a_count(text: str) -> None:
    assert speed_of(f"{text}!") is None
    assert slingshot_speed_of(f"{text}!") is None
    assert count_of(f"{text}!") is None
    assert all(
        value >= 0 and math.isfinite(value)
        for pairs in read_pairs(text).values()
        for value in pairs.values()
    )


def test_names_and_numbers_that_do_not_fit_together_are_nothing() -> None:
    assert read_pairs("Tcp: A B\nTcp: 1\n") == {}
    assert read_pairs("Tcp: A B\nIp: 1 2\n") == {}
    assert read_pairs("Tcp: A A\nTcp: 1 2\n") == {}
    assert read_pairs("Tcp: A B\nTcp: 1 -1\n") == {"Tcp": {"A": 1.0}}
