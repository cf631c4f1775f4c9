"""What is composed is scoped, whatever the names: shown on the parsed query (attack 11)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.domain.attempts import JobAttempt, attempts_of
from lattice.domain.metric import CATALOGUE
from lattice.features.prometheus.service.parser import parse
from lattice.features.prometheus.service.tree import Matcher, selectors
from lattice.features.top.model import TopMode
from lattice.features.top.service.composer import Climbs, composer
from lattice.observe.metric_query import owner_filter
from lattice.observe.windows import live_window
from tests.fakes.cluster import allocation

NAMES = st.text(
    st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30
) | st.sampled_from(
    ['1"} or up{a="', "alice", 'a\\"', '\\"} or {user=~".*', "a\nb", "`", "a|b", ".*", "\x00"]
)
ONCE = Matcher("le", "=~", "|[+]Inf")


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
    window = live_window(interval_s, duration_s)
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
        str(composed.now(window)),
        str(composed.now(replace(window, fresh_only=True))),
        str(composed.history(window)),
        str(composed.over(duration_s, interval_s, duration_s)),
        str(composed.alive()),
        str(composed.origins(window.gauge_s)),
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
    from lattice.features.prometheus.service import lexer

    before, lexer.LONGEST_QUERY = lexer.LONGEST_QUERY, 1_000_000
    try:
        return parse(text)
    finally:
        lexer.LONGEST_QUERY = before


@pytest.mark.spec("TOP-4")
def test_a_node_is_known_by_its_processor_its_cards_or_its_memory() -> None:
    """Slurm 26.05 with cgroup v1 makes no `cpuacct` group where a job has only its extern step."""
    owner = owner_filter(job("alice", "research", "1"))
    asked = str(composer(owner, TopMode.PER_NODE).alive())
    for each in ("cpu_seconds_total", "gpu_utilization_percent", "memory_used_bytes"):
        assert f"lattice_{each}" in asked
