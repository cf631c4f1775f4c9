"""What is composed is scoped, whatever the names: shown on the parsed query (attack 11)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.domain.attempts import JobAttempt, attempts_of
from lattice.domain.metric import CATALOGUE
from lattice.domain.promql import BadSelector
from lattice.features.prometheus.service.parsing import parse
from lattice.features.prometheus.service.tree import Matcher, selectors
from lattice.features.top.model import TopMode
from lattice.features.top.service.climbs import Climbs
from lattice.features.top.service.composing import (
    Spans,
    composer,
    history_step_s,
    peak_step_s,
)
from lattice.features.top.service.promql import (
    Figured,
    Over,
    OwnerFilter,
    Ranged,
    Selector,
    owner_filter,
)
from tests.fakes.cluster import allocation

NAMES = st.text(
    st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30
) | st.sampled_from(
    ['1"} or up{a="', "alice", 'a\\"', '\\"} or {user=~".*', "a\nb", "`", "a|b", ".*", "\x00"]
)
ONCE = Matcher("le", "=~", "|[+]Inf")
OWNER = OwnerFilter((("alloc", "1@2"), ("attempt", "1"), ("user", "alice")))


def job(user: str, account: str, name: str) -> JobAttempt:
    made = replace(allocation(1, user, "research"), id=name, account=account)
    return JobAttempt(made, attempts_of(made)[0])


@pytest.mark.spec("TOP-4")
@given(
    user=NAMES,
    account=NAMES,
    name=NAMES,
    mode=st.sampled_from(TopMode),
    interval_s=st.floats(0.1, 3600),
    duration_s=st.integers(1, 10**8),
)
def test_every_selector_of_every_query_asks_for_its_owner(
    user: str, account: str, name: str, mode: TopMode, interval_s: float, duration_s: int
) -> None:
    attempt = job(user, account, name)
    composed = composer(owner_filter(attempt), mode)
    step_s = peak_step_s(duration_s, interval_s)
    spans = Spans.of(interval_s, duration_s, step_s)
    wanted = {
        Matcher("alloc", "=", attempt.allocation.id),
        Matcher("attempt", "=", "1"),
        Matcher("user", "=", user),
        Matcher("project", "=", account),
        Matcher("tenant", "=", "physics"),
    }
    climbs = Climbs(composed.owner, composed.metrics).query(2e9, duration_s, interval_s)
    for text in (
        *([str(climbs)] if climbs is not None else []),
        str(composed.now(spans)),
        str(composed.now(spans, strict=True)),
        str(composed.history(spans)),
        str(composed.over(duration_s, step_s, spans)),
        str(composed.alive()),
        str(composed.origins(spans.fresh_s)),
    ):
        found = selectors(_parsed(text))
        assert found
        for each in found:
            names = [one for one in each.matchers if one.name == "__name__"]
            assert set(each.matchers) - {ONCE} == wanted | set(names)
            assert len(names) == 1
            assert all(
                one.removeprefix("lattice_") in CATALOGUE for one in names[0].value.split("|")
            )


def _parsed(text: str):  # type: ignore[no-untyped-def]
    # The longest of them may be longer than what a caller may send.
    from lattice.features.prometheus.service import lexing

    before, lexing.LONGEST_QUERY = lexing.LONGEST_QUERY, 1_000_000
    try:
        return parse(text)
    finally:
        lexing.LONGEST_QUERY = before


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
        Selector((name,), OWNER)
    with pytest.raises(BadSelector):
        Selector((), OWNER)


@pytest.mark.spec("TOP-4")
@pytest.mark.parametrize("seconds", [0, -1, True, 1.5, "5m]) or vector(1)"])
def test_a_length_of_time_is_a_whole_number_of_seconds(seconds: int) -> None:
    with pytest.raises(BadSelector):
        str(Ranged(Over.RATE, OWNER.of("cpu_cores"), seconds))


@pytest.mark.spec("TOP-4")
def test_a_figure_has_a_plain_name() -> None:
    with pytest.raises(BadSelector):
        Figured('x", "", ""', OWNER.of("cpu_cores"))


@given(st.floats(0.05, 7200), st.floats(1, 1e8))
def test_windows_fit_the_resolution(interval_s: float, lasted_s: float) -> None:
    spans = Spans.of(interval_s, lasted_s)
    assert spans.fresh_s >= 2.5 * interval_s
    assert spans.rate_s >= min(4 * interval_s, max(lasted_s, spans.fresh_s))
    assert spans.step_s >= 1
    assert lasted_s / history_step_s(lasted_s, interval_s) <= 60
