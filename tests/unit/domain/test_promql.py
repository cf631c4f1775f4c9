"""Selectors: whatever anybody is called or sends, they find one attempt's series and no others."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.domain.attempts import JobAttempt, attempts_of
from lattice.domain.promql import BadSelector, checked_name, quoted, scope_of
from lattice.features.telemetry.convert.stamps import stamps_of
from lattice.observe.metric_query import OwnerFilter, owner_filter
from tests.fakes.cluster import allocation

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
_STRING = re.compile(r'"(?:[^"\\\n]|\\["\\]|\\u[0-9a-f]{4}|\\U[0-9a-f]{8})*"')
_MATCHER = re.compile(rf"([a-zA-Z_]\w*)(=~|=)({_STRING.pattern})", re.ASCII)


def read_back(text: str) -> str:
    """As Go's `strconv.Unquote` does, for the escapes that are used."""
    assert _STRING.fullmatch(text), text
    return re.sub(
        r'\\(?:(["\\])|u([0-9a-f]{4})|U([0-9a-f]{8}))',
        lambda found: found[1] or chr(int(found[2] or found[3], 16)),
        text[1:-1],
    )


@pytest.mark.spec("TOP-4")
@given(TEXT)
def test_a_text_is_quoted_so_that_it_reads_back_as_itself(text: str) -> None:
    assert read_back(quoted(text)) == text


@pytest.mark.spec("TOP-4")
@given(TEXT.filter(bool), TEXT.filter(bool), TEXT, TEXT)
def test_no_name_or_value_can_leave_its_quotes(
    name: str, user: str, account: str, tenant: str
) -> None:
    job = replace(allocation(42, user, "research"), id=name, account=account, tenant=tenant)
    attempt = JobAttempt(job, attempts_of(job)[0])
    made = str(owner_filter(attempt).of("cpu_seconds_total"))
    inside = made.removeprefix("lattice_cpu_seconds_total{").removesuffix("}")
    found = _MATCHER.findall(inside)
    assert [(label, read_back(text)) for label, _, text in found] == list(scope_of(attempt))
    assert {sign for _, sign, _ in found} == {"="}
    assert ",".join("".join(each) for each in found) == inside


@pytest.mark.spec("TOP-4")
@pytest.mark.parametrize("label", ["alloc", "attempt", "user", "tenant", "project"])
def test_nothing_stands_for_a_label_of_the_scope(label: str) -> None:
    job = allocation(42, "alice", "research")
    scope = scope_of(JobAttempt(job, attempts_of(job)[0]))
    with pytest.raises(BadSelector):
        OwnerFilter((*scope, (label, "bob")))
    with pytest.raises(BadSelector):
        OwnerFilter(((label, ".*"), *scope))


@pytest.mark.spec("TOP-4")
def test_the_scope_is_whose_it_is() -> None:
    job = allocation(42, "alice", "research")
    assert scope_of(JobAttempt(job, attempts_of(job)[0])) == (
        ("alloc", "42"),
        ("attempt", "1"),
        ("project", "research"),
        ("tenant", "physics"),
        ("user", "alice"),
    )


@pytest.mark.spec("TOP-4")
def test_what_is_asked_for_is_what_nodes_samples_are_stamped_with() -> None:
    job = allocation(42, "alice", "research")
    attempt = JobAttempt(job, attempts_of(job)[0])
    assert set(scope_of(attempt)) <= set(stamps_of(attempt).on("n1").items())


@pytest.mark.spec("TOP-4")
def test_what_can_be_no_name_and_no_value_is_refused() -> None:
    with pytest.raises(BadSelector):
        quoted("\ud800")
    for name in ("", "a b", 'a"', "1a", "a-b", "é"):
        with pytest.raises(BadSelector):
            checked_name(name)
