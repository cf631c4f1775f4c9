"""The pages of metrics: clean for promtool, as catalogued, and as the reference describes them."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from functools import cache

import pytest

from lattice.foundation.own_metrics import OwnMetrics
from lattice.foundation.server_series import SERIES
from scripts.golden_metrics import agent_text, server_text
from scripts.reference_metrics import TARGET, page

_HEAD = re.compile(r"# HELP (\S+) (.*)\n# TYPE (\S+) (\w+)\n")
_SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? \S+$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="(?:[^"\\]|\\.)*"')
_LINKED = frozenset({"lattice_agents_linked", "lattice_agents_lost", "lattice_agents_degraded"})


@cache
def server_page() -> str:
    return server_text()


@cache
def agent_page() -> str:
    return agent_text()


def faults(text: str) -> str:
    """What promtool says of a page; empty if it is clean."""
    found = subprocess.run(
        ["promtool", "check", "metrics"], input=text, capture_output=True, text=True, check=False
    )
    return found.stdout + found.stderr


def heads(text: str) -> Iterator[tuple[str, str, str]]:
    for name, help_text, typed, kind in _HEAD.findall(text):
        assert name == typed
        yield name, help_text, kind


@pytest.mark.spec("OPS-8")
def test_promtool_finds_no_fault_in_the_pages() -> None:
    assert faults(server_page()) == ""
    assert faults(agent_page()) == ""


@pytest.mark.spec("OPS-8")
def test_promtool_finds_no_fault_in_any_series_of_the_catalogue() -> None:
    lines = []
    for each in SERIES.values():
        lines += [f"# HELP {each.name} {each.help_text}", f"# TYPE {each.name} {each.kind}"]
        labels = ",".join(f'{name}="x"' for name in each.labels)
        if each.kind == "histogram":
            lines += [
                f'{each.name}_bucket{{{labels},le="+Inf"}} 1',
                f"{each.name}_sum{{{labels}}} 1",
                f"{each.name}_count{{{labels}}} 1",
            ]
        else:
            lines.append(f"{each.name}{{{labels}}} 1")
    assert faults("\n".join(lines) + "\n") == ""


def test_promtool_is_asked_indeed() -> None:
    assert "counter metrics should have" in faults("# HELP a b\n# TYPE a counter\na 1\n")


def test_every_series_of_the_server_is_in_the_catalogue() -> None:
    for name, help_text, kind in heads(server_page()):
        known = SERIES[name]
        assert (kind, help_text) == (known.kind, known.help_text)
    for name, labels in _SAMPLE.findall(server_page()):
        known = SERIES.get(name) or SERIES[re.sub("_(bucket|sum|count)$", "", name)]
        assert set(_LABEL.findall(labels)) - {"le"} == set(known.labels), name


def test_every_help_text_is_a_sentence_and_not_the_name_again() -> None:
    for text in (server_page(), agent_page()):
        for name, help_text, _ in heads(text):
            assert help_text[0].isupper() or help_text[0].isdigit(), name
            assert help_text.endswith("."), name
            words = set(re.findall(r"[a-z]+", help_text.lower()))
            assert words - set(re.split("_", name)), name


def test_times_of_creation_are_not_shown() -> None:
    figures = OwnMetrics()
    figures.limit_refused("rate")
    assert "_created" not in figures.text()
    assert 'lattice_limit_refusals_total{kind="rate"} 1.0' in figures.text()


def test_the_reference_is_fresh() -> None:
    assert TARGET.read_text() == page(), "`just generate` renews it"


def test_agents_are_not_counted_before_the_agreed_state_was_read() -> None:
    # Nothing is behind this server, so its views have not been read yet.
    shown = {name for name, _ in _SAMPLE.findall(server_page())}
    assert shown.isdisjoint(_LINKED)
