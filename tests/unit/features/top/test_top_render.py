"""The plain table, and commas: nothing invented, nothing too wide, every gap with its reason."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.base.quantity import number
from lattice.base.style import Style
from lattice.base.text import cells
from lattice.domain.allocation import State
from lattice.domain.measured import SHOWN, Shown
from lattice.domain.metric import Provenance
from lattice.domain.source import Source
from lattice.domain.telemetry import Coverage, MetricOrigin
from lattice.features.top.model import (
    RowKind,
    TopAnswer,
    TopCell,
    TopMode,
    TopRow,
    columns_of,
)
from lattice.features.top.render.plain import commas, plain

NOW = datetime(2026, 11, 15, 14, 2, 11, tzinfo=UTC)
USED = {
    Shown.GPU_UTILIZATION: 83.0,
    Shown.GPU_MEMORY_USED: 40.2 * 2**30,
    Shown.GPU_POWER_DRAW: 305.0,
    Shown.CPU_UTILIZATION: 6400.0,
    Shown.MEMORY_USED: 1.5 * 2**40,
    Shown.NETWORK_TX_BYTES: 123.4 * 2**20,
    Shown.NETWORK_RX_BYTES: 999.0,
    Shown.IO_READ_BYTES: 0.0,
    Shown.IO_WRITE_BYTES: 50e6,
    Shown.IO_LATENCY_P99: 12_345.0,
}


def row(mode: TopMode, node: str = "", **changes: Any) -> TopRow:
    found = tuple(
        TopCell(
            metric=each.metric,
            value=USED.get(each.metric, 1.0),
            source=Provenance.HOST_LOCAL_PROBE,
            of=1,
        )
        for each in columns_of(mode)
    )
    kind = RowKind.NODE if node else RowKind.SUMMARY
    return TopRow(**{"kind": kind, "node": node, "age_s": 12.0, "cells": found} | changes)


def gone(mode: TopMode, node: str, reason: str) -> TopRow:
    found = tuple(TopCell(metric=each.metric, reason=reason) for each in columns_of(mode))
    return row(mode, node, age_s=None, reason=reason, cells=found)


def answer(mode: TopMode, *rows: TopRow, **changes: Any) -> TopAnswer:
    facts: dict[str, Any] = {
        "allocation": "42@1794700000",
        "id": "42",
        "name": "train",
        "attempt": 1,
        "attempts": 1,
        "state": State.RUNNING,
        "nodes": "n[1-2]",
        "node_count": 2,
        "started": NOW - timedelta(hours=1),
        "taken": NOW,
        "mode": mode,
        "origin": MetricOrigin(
            source=Provenance.HOST_LOCAL_PROBE,
            age_s=12.0,
            resolution_s=30.0,
            coverage=Coverage(1, 2),
            via="store",
        ),
        "columns": columns_of(mode),
        "rows": rows,
    }
    return TopAnswer(**facts | changes)


@pytest.mark.spec("SRC-2", "TOP-3")
def test_what_is_missing_is_a_dash_with_its_reason_below() -> None:
    mode = TopMode.PER_NODE
    looked = answer(mode, row(mode), row(mode, "n1"), gone(mode, "n2", "node lost, for 40 s"))
    text = plain(looked, Style(), NOW)
    lines = text.splitlines()
    assert lines[0] == "42  train  running  01:00:00  n[1-2]"
    assert lines[1] == "source: host_local_probe by store · age 12 s · every 30 s · 1/2 nodes"
    assert lines[2].split()[0] == "NODE"
    assert lines[4].split()[0] == "n2"
    assert set(lines[4].split()[1:]) == {"—"}
    assert lines[-1] == "— n2: node lost, for 40 s"
    assert "0%" not in lines[4]


@pytest.mark.spec("SRC-1")
def test_the_head_tells_how_the_values_came() -> None:
    mode = TopMode.SUMMARY
    looked = answer(mode, row(mode))
    origin = replace(looked.origin, via="agents (the metric store does not answer)")
    stale = Source(name="slurmctld", ok=False, age_s=40.0)
    text = plain(replace(looked, origin=origin, sources=(stale,)), Style(), NOW)
    assert "by agents (the metric store does not answer)" in text
    assert "running (as of 40 s ago)" in text


@pytest.mark.spec("CLI-1")
@pytest.mark.parametrize("mode", list(TopMode))
@pytest.mark.parametrize("width", [80, 100, 200])
def test_it_fits_the_terminal(mode: TopMode, width: int) -> None:
    names = [f"node-with-a-name-{number}" for number in range(3)]
    rows = [row(mode, each, gpu_uuid="GPU-8f3c8f2a-1b2c-3d4e") for each in names]
    looked = answer(mode, row(mode), *rows, notes=("word " * 40,))
    text = plain(looked, Style(width=width), NOW)
    assert max(map(cells, text.splitlines())) <= width
    for each in columns_of(mode):
        assert number(USED.get(each.metric, 1.0), each.unit) in text, "nothing is left out"


def test_what_was_measured_nowhere_has_no_column_but_a_reason() -> None:
    mode = TopMode.PER_NODE
    bare = tuple(
        replace(each, value=None, reason="no GPU on this node", source=Provenance.UNAVAILABLE)
        if SHOWN[each.metric].per_gpu
        else each
        for each in row(mode).cells
    )
    rows = [row(mode, each, cells=bare) for each in ("n1", "n2")]
    text = plain(answer(mode, row(mode, cells=bare), *rows), Style(), NOW)
    assert "POWER" not in text
    assert (
        "— gpu_utilization, gpu_memory_used, gpu_power_draw on n[1-2]: no GPU on this node" in text
    )


def test_each_metric_is_missing_only_where_it_is() -> None:
    mode = TopMode.PER_NODE
    told = row(mode).cells
    none = [replace(each, value=None, reason="not measured") for each in told]
    rows = [row(mode, "n1", cells=(none[0], *told[1:])), row(mode, "n2", cells=tuple(none))]
    text = plain(answer(mode, row(mode), *rows), Style(), NOW)
    assert f"— {told[0].metric.value} on n[1-2]: not measured" in text
    assert f"— {told[1].metric.value}, " in text
    assert text.count("on n2: not measured") == 1


def test_a_figure_of_the_whole_node_is_marked() -> None:
    mode = TopMode.SUMMARY
    cells_ = tuple(
        replace(each, scope="node") if each.metric is Shown.NETWORK_TX_BYTES else each
        for each in row(mode).cells
    )
    text = plain(answer(mode, row(mode, cells=cells_)), Style(), NOW)
    assert "123M/s*" in text
    assert "* network_tx_bytes: the whole node's, not the job's alone" in text


def test_text_from_outside_can_do_nothing() -> None:
    mode = TopMode.PER_NODE
    looked = answer(
        mode,
        row(mode),
        gone(mode, "n1", "\x1b[2J"),
        name="\x1b]0;owned\x07",
        nodes="\x1b[1m",
        notes=("\x1b[31m",),
    )
    assert "\x1b" not in plain(looked, Style(), NOW)
    assert "\x1b" not in commas(looked)


@pytest.mark.spec("SRC-2")
def test_commas_leave_what_is_missing_empty_with_the_reason() -> None:
    mode = TopMode.PER_NODE
    looked = answer(mode, row(mode), gone(mode, "n2", "node, lost"))
    read = list(csv.DictReader(io.StringIO(commas(looked))))
    assert len(read) == 2 * len(columns_of(mode))
    last = read[-1]
    assert (last["node"], last["value"], last["reason"]) == ("n2", "", "node, lost")
    assert read[0]["value"] == "83.0"


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.0, "%", "0%"),
        (99.95, "%", "100.0%"),
        (150.0, "%", "150%"),
        (1536.0, "bytes", "1.50K"),
        (40.2 * 2**30, "bytes", "40.2G"),
        (999.0, "bytes/s", "999B/s"),
        (850.0, "µs", "850µs"),
        (12_345.0, "µs", "12.3ms"),
        (2410.0, "W", "2.41kW"),
        (3.0, "", "3"),
    ],
)
def test_numbers_are_short(value: float, unit: str, text: str) -> None:
    assert number(value, unit) == text


@given(st.floats(0, 1e18), st.sampled_from(sorted({each.unit for each in SHOWN.values()})))
def test_no_number_is_long(value: float, unit: str) -> None:
    if unit in {"bytes", "bytes/s", "µs"}:
        assert len(number(value, unit)) <= 22
    assert number(value, unit)
