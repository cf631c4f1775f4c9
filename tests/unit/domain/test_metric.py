"""A sample can't hold a number that nobody measured."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.domain.metric import (
    CATALOGUE,
    Metric,
    MetricKind,
    NotMeasured,
    Per,
    Provenance,
    Sample,
    labelled,
)

NOW = 1_790_000_000.0
UUID = "GPU-6a1c0f3e"

_LINKS = frozenset({"gpu_nvlink_bytes_total", "gpu_xgmi_bytes_total"})


def sample(metric: str = "memory_used_bytes", value: float = 1.0, **changes: Any) -> Sample:
    return Sample(metric, value, **{"time": NOW, **changes})


@pytest.mark.spec("SRC-2")
@pytest.mark.parametrize(
    "value", [math.nan, math.inf, -math.inf, -1.0, -0.001, 1.4e19, True, False]
)
def test_what_is_no_measurement_is_no_sample(value: float) -> None:
    with pytest.raises(NotMeasured):
        sample(value=value)


@pytest.mark.spec("SRC-2")
def test_a_number_has_a_source_and_a_moment() -> None:
    with pytest.raises(NotMeasured):
        sample(source=Provenance.UNAVAILABLE)
    for time in (0.0, -NOW, math.nan, math.inf, NOW * 1000):
        with pytest.raises(NotMeasured):
            sample(time=time)


def test_a_blank_of_a_vendor_is_out_of_every_bound() -> None:
    """DCGM says 1.4e16 where it knows nothing."""
    cards = [each for each in CATALOGUE.values() if each.per is Per.GPU]
    for metric in (each for each in cards if each.name not in _LINKS):
        with pytest.raises(NotMeasured):
            sample(metric.name, 1.4e16, labels=_labels(metric))


@pytest.mark.parametrize("name", sorted(_LINKS))
def test_a_card_moves_more_than_a_petabyte_over_its_links(name: str) -> None:
    """Twenty minutes of one; its blanks are refused where it is read."""
    metric = CATALOGUE[name]
    assert sample(metric.name, 1.9e20, labels=_labels(metric)).value == 1.9e20


def _labels(metric: Metric) -> tuple[tuple[str, str], ...]:
    return labelled(**dict.fromkeys(metric.label_names, "x"))


@given(st.sampled_from(sorted(CATALOGUE)), st.floats(), st.floats())
def test_whatever_is_put_in_only_numbers_stay(name: str, value: float, time: float) -> None:
    metric = CATALOGUE[name]
    try:
        made = Sample(name, value, time, labels=_labels(metric))
    except NotMeasured:
        return
    assert math.isfinite(made.value)
    assert 0 <= made.value <= metric.most
    assert math.isfinite(made.time)


def test_labels_are_those_of_the_metric_and_no_others() -> None:
    assert sample("gpu_power_watts", labels=labelled(gpu_uuid=UUID)).label("gpu_uuid") == UUID
    for labels in (
        (),
        labelled(gpu_uuid=UUID, user="bob"),
        labelled(uuid=UUID),
        labelled(gpu_uuid=""),
        labelled(gpu_uuid="a\nb"),
        labelled(gpu_uuid="x" * 200),
    ):
        with pytest.raises(NotMeasured):
            sample("gpu_power_watts", labels=labels)


def test_a_name_that_is_not_in_the_catalogue() -> None:
    with pytest.raises(NotMeasured):
        sample("up")


@pytest.mark.spec("TOP-1")
def test_the_catalogue_is_named_as_prometheus_wants() -> None:
    for name, metric in CATALOGUE.items():
        assert re.fullmatch(r"[a-z][a-z0-9_]*", name)
        counts = name.endswith(("_total", "_bucket"))
        assert (metric.kind is MetricKind.COUNTER) is counts, name
        assert name.startswith("gpu_") is (metric.per is Per.GPU), name
        assert metric.description
        assert metric.series == f"lattice_{name}"
