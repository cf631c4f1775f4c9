"""No probe of the kernel's files can be made to tell a number that is not in them.

Files are missing, folders, blank, cut, garbage, other bytes, or hold figures that are none; and the
helper says anything. What is told is then what the whole tree has, or less of a sum, or nothing.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.domain.counters import IO, NETWORK, CounterAnswer
from lattice.domain.metric import Absence, MetricReading, Sample
from lattice.domain.nodejobs import NodeJob
from lattice.probes.cgroup import CgroupProbe
from lattice.probes.helper_cache import HelperReadings
from lattice.probes.network import NetworkProbe
from lattice.probes.probe import Probe, ProbeRoots
from lattice.probes.processes import ProcessesProbe
from lattice.probes.registry import Registry
from tests.fakes.kernel_trees import Tree, values
from tests.fakes.manual_clock import ManualClock

NO_FIGURES = [
    "", " ", "\n\n", "NaN", "nan\n", "-1\n", "+5", "1.4e16\n", "0x10", "٣\n", "½", "inf",
    "9" * 40 + "\n", "oom_kill NaN\n", "usage_usec -3\n", "anon 1.5\nfile x\nshmem \n",
    "some avg10=0.00 avg60=0.00 avg300=0.00 total=NaN\n", "some total=5\n", "max max\n",
    "total_rss -4\ntotal_shmem blank\n", "eth0: NaN\n", "a b\nc d\ne: f\n", "oom_kill\n",
]  # fmt: skip
SUMS = {"processes", "threads", "memory_oom_kills_total", "cpu_cores"}
broken = (
    st.sampled_from([None, Path])
    | st.sampled_from(NO_FIGURES)
    | st.text(st.characters(exclude_categories=["Nd", "Cs"]), max_size=40)
)


def read(
    roots: ProbeRoots, job: NodeJob, telling: CounterAnswer | None = None
) -> tuple[MetricReading, ...]:
    clock = ManualClock()
    look = HelperReadings(_Line(telling) if telling is not None else None, clock)
    probes: list[Probe] = [
        CgroupProbe(roots, clock), ProcessesProbe(look, clock), NetworkProbe(roots, look, clock)
    ]  # fmt: skip
    registry = Registry([], clock, together=probes)
    try:
        found = asyncio.run(registry.read([job]))[job.identity]
    finally:
        registry.close()
    assert {each.metric for each in found} == registry.metrics
    return found


class _Line:
    def __init__(self, telling: CounterAnswer) -> None:
        self._telling = telling

    def ask(self, want: Sequence[str], jobs: Sequence[int]) -> CounterAnswer:
        assert want
        assert jobs
        return self._telling


def _break(file: Path, how: Any) -> None:
    file.unlink()
    if how is Path:
        file.mkdir()
    elif how is not None:
        file.write_bytes(how.encode() if isinstance(how, str) else how)


@cache
def _whole(name: str, *, devices: bool = True) -> dict[str, float]:
    """Where no interface has a device all count: two more, which were idle."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Tree(Path(folder), name)
        if not devices:
            shutil.rmtree(tree.roots.sys, ignore_errors=True)
        return values(read(tree.roots, tree.job))


@pytest.mark.spec("SRC-2")
@pytest.mark.parametrize("name", ["v1", "v2"])
@given(data=st.data())
def test_what_is_broken_tells_nothing_and_what_is_whole_stays_true(
    name: str, data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        tree = Tree(Path(folder), name)
        whole = _whole(name)
        files = sorted(each for each in Path(folder).rglob("*") if each.is_file())
        for file in data.draw(st.lists(st.sampled_from(files), unique=True)):
            _break(file, data.draw(broken | st.binary(max_size=0)))
        for key, value in values(read(tree.roots, tree.job)).items():
            metric = key.split()[0]
            if metric == "memory_limit_bytes":
                assert value in {1610612736, 1073741824, 8589934592}
            elif metric == "cpu_cores":
                assert value in {1.5, 2, 3, 4}
            elif metric == "cpu_seconds_total":
                assert value in {whole[key], 93.4}
            elif metric.startswith("network_"):
                assert value in {whole[key], _whole(name, devices=False)[key]}
            elif metric in SUMS:
                assert value <= whole[key]
            else:
                assert value == whole[key]


@pytest.mark.spec("SRC-2")
@pytest.mark.parametrize("name", ["v1", "v2"])
@pytest.mark.parametrize("how", [None, Path, *(each for each in NO_FIGURES if each.strip())])
def test_a_tree_without_figures_has_no_numbers(tmp_path: Path, name: str, how: Any) -> None:
    tree = Tree(tmp_path, name)
    for file in [each for each in tmp_path.rglob("*") if each.is_file()]:
        _break(file, how)
    found = read(tree.roots, tree.job)
    assert values(found) == {}
    assert all(each.reason for each in found if isinstance(each, Absence))


anything = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 2**70) | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=8),
    max_leaves=20,
)
row = st.lists(st.integers(-1, 2**65), min_size=1, max_size=8)
rows = st.lists(row | anything, max_size=4)


@pytest.mark.spec("SRC-2")
@given(io=rows, network=rows)
def test_whatever_the_helper_says_no_number_is_made_up(
    tmp_path_factory: pytest.TempPathFactory, io: list[Any], network: list[Any]
) -> None:
    tree = Tree(tmp_path_factory.mktemp("tree"), "v2")
    telling = CounterAnswer({IO: {11: io}, NETWORK: {11: network}})
    for each in read(tree.roots, tree.job, telling):
        if not isinstance(each, Sample):
            continue
        if each.metric.startswith("io_"):
            at = 3 if each.metric == "io_read_bytes_total" else 4
            parts = [row[at] for row in io if len(row) == 7]
            assert parts
            assert each.value <= sum(parts)
        elif each.metric.startswith("network_") and each.label("scope") == "job":
            assert all(len(row) == 5 and row[0] > 0 for row in network)
    shutil.rmtree(tree.root)
