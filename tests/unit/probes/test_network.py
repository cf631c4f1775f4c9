"""What went over the network: the job's where it has one of its own, else the node's, labelled."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from lattice.domain.counters import NETWORK, CountersUnavailable
from lattice.domain.kerneltext import read_devices
from lattice.domain.metric import MetricReading
from lattice.probes.helper_cache import HelperReadings
from lattice.probes.network import NetworkProbe
from tests.fakes.kernel_trees import Line, Tree, reasons, values
from tests.fakes.manual_clock import ManualClock

HEAD = "Inter-| Receive | Transmit\n face |bytes packets ...\n"


def line_of(name: str, rx: int, tx: int, packets: int = 1, errors: int = 0) -> str:
    return f"{name}: {rx} {packets} {errors} 0 0 0 0 0 {tx} {packets} {errors} 0 0 0 0 0\n"


def read(tree: Tree, probe: NetworkProbe) -> Sequence[MetricReading]:
    return probe.read([tree.job])[tree.job.identity]


def probe_of(tree: Tree, line: Line | None, clock: ManualClock) -> NetworkProbe:
    return NetworkProbe(tree.roots, HelperReadings(line, clock), clock)


def told(scope: str, rx: float, tx: float, packets: float, errors: float) -> dict[str, float]:
    return {
        f"network_rx_bytes_total {scope}": rx,
        f"network_tx_bytes_total {scope}": tx,
        f"network_packets_total {scope}": packets,
        f"network_errors_total {scope}": errors,
    }


@pytest.mark.spec("TOP-1")
def test_interfaces_with_a_device_count_and_virtual_ones_do_not(tmp_path: Path) -> None:
    tree = Tree(tmp_path, "v1")
    expected = read_devices((tmp_path / "proc/net/dev").read_text())
    assert expected is not None
    assert values(read(tree, probe_of(tree, None, ManualClock()))) == told(
        "node", *expected["eth0"]
    )


@pytest.mark.spec("TOP-1")
def test_a_bond_of_two_is_not_counted_beside_them(tmp_path: Path) -> None:
    tree = Tree(tmp_path, "v1")
    tree.write("sys/class/net/eth1/device", "")
    lines = [line_of("eth0", 10, 1), line_of("eth1", 20, 2), line_of("bond0", 30, 3)]
    tree.write("proc/net/dev", HEAD + "".join(lines) + line_of("lo", 5, 5))
    assert values(read(tree, probe_of(tree, None, ManualClock()))) == told("node", 30, 3, 4, 0)


@pytest.mark.spec("TOP-1")
def test_a_node_that_is_a_namespace_counts_all_but_the_loopback(tmp_path: Path) -> None:
    tree = Tree(tmp_path, "v2")
    found = values(read(tree, probe_of(tree, None, ManualClock())))
    assert found == told("node", 100000, 50000, 300, 3)


@pytest.mark.spec("TOP-1", "TOP-2")
def test_a_job_with_a_network_of_its_own_has_its_own_figures(tmp_path: Path) -> None:
    tree, clock = Tree(tmp_path, "v2"), ManualClock()
    line = Line({NETWORK: {11: [[77, 1000, 2000, 30, 3], [78, 1, 2, 3, 4]]}})
    probe = probe_of(tree, line, clock)
    assert values(read(tree, probe)) == told("job", 1001, 2002, 33, 7)
    # One network goes, and its number is given to another: what was counted stays.
    clock.advance(1)
    line.told = {NETWORK: {11: [[77, 10, 20, 3, 0]]}}
    assert values(read(tree, probe)) == told("job", 1011, 2022, 36, 7)


@pytest.mark.spec("TOP-2")
@pytest.mark.parametrize(
    "line",
    [
        None,
        Line(),
        Line(fails=CountersUnavailable("gone")),
        Line({NETWORK: {11: [[0]]}}),
        Line({NETWORK: {11: [[0], [77, 1000, 2000, 30, 3]]}}),
        Line({NETWORK: {11: []}}),
        Line({NETWORK: {11: [["x"]]}}),
        Line({NETWORK: {12: [[77, 1000, 2000, 30, 3]]}}),
    ],
)
def test_in_every_other_case_the_figures_are_the_node_s_and_say_so(
    tmp_path: Path, line: Line | None
) -> None:
    tree = Tree(tmp_path, "v2")
    found = values(read(tree, probe_of(tree, line, ManualClock())))
    assert found == told("node", 100000, 50000, 300, 3)


@pytest.mark.spec("SRC-2")
def test_a_network_that_could_not_be_read_is_no_number(tmp_path: Path) -> None:
    tree = Tree(tmp_path, "v2")
    found = read(tree, probe_of(tree, Line({NETWORK: {11: [[77]]}}), ManualClock()))
    assert values(found) == {}
    assert set(reasons(found).values()) == {"the network of the job could not be read"}


@pytest.mark.spec("SRC-2")
def test_of_a_job_that_could_not_be_read_there_is_no_number_of_the_node(tmp_path: Path) -> None:
    tree = Tree(tmp_path, "v2")
    line = Line({NETWORK: {}}, unread={11: "they hang"})
    found = read(tree, probe_of(tree, line, ManualClock()))
    assert values(found) == {}
    assert set(reasons(found).values()) == {"they hang"}


@pytest.mark.spec("TOP-1")
def test_an_interface_that_goes_is_carried(tmp_path: Path) -> None:
    tree, clock = Tree(tmp_path, "v2"), ManualClock()
    probe = probe_of(tree, None, clock)
    tree.write("proc/net/dev", HEAD + line_of("a", 10, 1) + line_of("b", 20, 2))
    assert values(read(tree, probe))["network_rx_bytes_total node"] == 30
    tree.write("proc/net/dev", HEAD + line_of("b", 25, 2))
    assert values(read(tree, probe))["network_rx_bytes_total node"] == 35


@pytest.mark.spec("SRC-2")
@pytest.mark.parametrize(
    "text",
    ["", HEAD, HEAD + "eth0: 1 2\n", HEAD + "eth0 1 2\n", HEAD + line_of("eth0", -1, 2), "NaN"],
)
def test_what_the_kernel_does_not_write_is_no_number(tmp_path: Path, text: str) -> None:
    tree = Tree(tmp_path, "v2")
    tree.write("proc/net/dev", text)
    assert values(read(tree, probe_of(tree, None, ManualClock()))) == {}


@pytest.mark.spec("SRC-2")
def test_a_node_without_a_network_has_no_zeros(tmp_path: Path) -> None:
    tree = Tree(tmp_path, "v2")
    tree.write("proc/net/dev", HEAD + line_of("lo", 5, 5))
    assert values(read(tree, probe_of(tree, None, ManualClock()))) == {}
