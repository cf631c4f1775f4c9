"""Nobody gets a point of another's series, by whatever words; a node speaks for itself alone."""

from __future__ import annotations

from urllib.parse import urlencode

import pytest

from lab.laboratory import Lab
from tests.e2e.measured import Measured
from tests.e2e.people import Person
from tests.e2e.topped import debugged
from tests.eventually import eventually

pytestmark = pytest.mark.lab

ESCAPES = (
    "lattice_cpu_seconds_total",
    'lattice_cpu_seconds_total{user="alice"}',
    'lattice_cpu_seconds_total{user=~".*"}',
    'lattice_cpu_seconds_total{user!="bob"}',
    '{__name__=~"lattice_.*"}',
    '{__name__=~".+",user="alice"}',
    'sum(lattice_cpu_seconds_total) or sum({user="alice"})',
    "lattice_cpu_seconds_total or up",
    'label_replace(lattice_cpu_seconds_total,"user","bob","","")',
    "max_over_time(lattice_cpu_seconds_total[1h:1m])",
    'lattice_cpu_seconds_total{user="bob"} or lattice_cpu_seconds_total{user="alice" , }',
    'lattice_cpu_seconds_total{user="bob\\"} or {user=\\"alice"}',
    '# {user="bob"}\nlattice_cpu_seconds_total',
    "lattice_cpu_seconds_total @ end()",
)


@pytest.mark.story
@pytest.mark.spec("TOP-4", "TOP-6")
def test_no_query_of_bobs_shows_a_point_of_alices(lab: Lab, alice: Person, bob: Person) -> None:
    with debugged(lab, alice, wrap="sleep 600") as job:
        mine = Measured(lab, alice)
        found = eventually(lambda: mine.query("lattice_cpu_seconds_total"), bool)
        assert {each["metric"]["user"] for each in found} == {"alice"}
        theirs = Measured(lab, bob)
        for query in ESCAPES:
            answer = theirs._asked("/prometheus/api/v1/query?" + urlencode({"query": query}))
            if answer.get("status") != "success":
                assert answer.get("error") or answer.get("message"), answer
                continue
            labels = [each["metric"] for each in answer["data"]["result"]]
            assert "alice" not in str(labels), query
            assert not any(each.get("alloc") == str(job) for each in labels), query
        for extra in (
            {"extra_filters[]": '{user="alice"}'},
            {"extra_label": "user=alice"},
            {"extra_filters": '{user="alice"}'},
        ):
            words = urlencode({"query": "lattice_cpu_seconds_total", **extra})
            answer = theirs._asked("/prometheus/api/v1/query?" + words)
            assert "alice" not in str(answer.get("data", "")), extra
        for path in (
            "/prometheus/api/v1/labels",
            "/prometheus/api/v1/label/alloc/values",
            "/prometheus/api/v1/label/user/values",
            '/prometheus/api/v1/series?match[]={__name__=~"lattice_.*"}'.replace(
                "{", "%7B"
            ).replace("}", "%7D"),
        ):
            answer = theirs._asked(path)
            assert "alice" not in str(answer), path
            assert f"'{job}'" not in str(answer), path


@pytest.mark.spec("TOP-4")
def test_hostile_words_for_a_job(alice: Person) -> None:
    """They are a name that nobody's job has, or no time; never a part of a query."""
    for name, *words in (
        ('1"} or up{a="',),
        ("1{}",),
        ("1", "--duration", "5m]) or vector(1)"),
    ):
        said = alice.tries("top", name, "--once", *words)
        assert said.code in {2, 102}, said
        assert not said.out
