"""The tree of queries: it can't be built without an owner, and nothing in it can be text."""

from __future__ import annotations

import pytest

from lattice.domain.promql import BadSelector
from lattice.observe.metric_query import Figured, Over, OwnedSeries, OwnerFilter, Ranged

OWNER = OwnerFilter((("alloc", "1@2"), ("attempt", "1"), ("user", "alice")))


@pytest.mark.spec("TOP-4")
def test_a_filter_without_an_owner_cannot_be_made() -> None:
    for labels in (
        (),
        (("alloc", "1"), ("attempt", "1")),
        (("alloc", "1"), ("attempt", "1"), ("user", "")),
        (("alloc", ""), ("attempt", "1"), ("user", "alice")),
    ):
        with pytest.raises(BadSelector):
            OwnerFilter(labels)


@pytest.mark.spec("TOP-4")
@pytest.mark.parametrize("name", ["up", "lattice_cpu_cores", 'x"} or up{a="', "", ".*"])
def test_only_metrics_of_the_catalogue_can_be_named(name: str) -> None:
    with pytest.raises(BadSelector):
        OwnedSeries((name,), OWNER)
    with pytest.raises(BadSelector):
        OwnedSeries((), OWNER)


@pytest.mark.spec("TOP-4")
@pytest.mark.parametrize("seconds", [0, -1, True, 1.5, "5m]) or vector(1)"])
def test_a_length_of_time_is_a_whole_number_of_seconds(seconds: int) -> None:
    with pytest.raises(BadSelector):
        str(Ranged(Over.RATE, OWNER.of("cpu_cores"), seconds))


@pytest.mark.spec("TOP-4")
@pytest.mark.parametrize("name", ['x", "", ""', "", "a\nb", "é"])
def test_a_figure_has_a_plain_name(name: str) -> None:
    with pytest.raises(BadSelector):
        Figured(name, OWNER.of("cpu_cores"))
