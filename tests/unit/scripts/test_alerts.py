"""Alert rules and the operators' dashboard: tested by promtool, of series that exist."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from lattice.features.prometheus.service.parser import parse
from lattice.features.prometheus.service.tree import Selector, selectors
from lattice.foundation.server_series import SERIES

ROOT = Path(__file__).parents[3]
ALERTS = ROOT / "infra/alerts"
(_GROUP,) = yaml.safe_load((ALERTS / "lattice.rules.yml").read_text())["groups"]
RULES: list[dict[str, Any]] = _GROUP["rules"]
TESTS: list[dict[str, Any]] = yaml.safe_load((ALERTS / "tests.yml").read_text())["tests"]
BOARD: dict[str, Any] = json.loads((ROOT / "infra/grafana/operator.json").read_text())
_OF_THE_SCRAPER = {"up": {"job", "instance"}}
_EVERYWHERE = {"__name__", "job", "instance", "le"}


def promtool(*words: str) -> str:
    """What it prints; fails if it finds a fault."""
    found = subprocess.run(
        ["promtool", *words], cwd=ALERTS, capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stdout + found.stderr
    return found.stdout


def known_labels(selector: Selector) -> set[str]:
    """The labels of a series; fails for one that no server shows."""
    name = next(each.value for each in selector.matchers if each.name == "__name__")
    if name in _OF_THE_SCRAPER:
        return _OF_THE_SCRAPER[name] | _EVERYWHERE
    series = SERIES.get(name) or SERIES[re.sub("_(bucket|sum|count)$", "", name)]
    return {*series.labels, *_EVERYWHERE}


def check_series(expression: str, *more: str) -> None:
    """Every selector is of a series that exists, with labels that it has; `more` are labels too."""
    found = selectors(parse(expression.replace("$__rate_interval", "2m")))
    assert found
    for each in found:
        assert {matcher.name for matcher in each.matchers} <= known_labels(each), expression
    assert set(more) <= set().union(*map(known_labels, found)), expression


@pytest.mark.spec("OPS-8")
def test_promtool_accepts_the_rules() -> None:
    assert f"{len(RULES)} rules found" in promtool("check", "rules", "lattice.rules.yml")
    assert len(RULES) >= 12


@pytest.mark.spec("OPS-8")
def test_the_rules_fire_when_they_should_and_only_then() -> None:
    assert "SUCCESS" in promtool("test", "rules", "tests.yml")
    for rule in RULES:
        cases = [
            bool(case["exp_alerts"])
            for each in TESTS
            for case in each["alert_rule_test"]
            if case["alertname"] == rule["alert"]
        ]
        assert {*cases} == {True, False}, rule["alert"]


@pytest.mark.spec("OPS-8")
@pytest.mark.parametrize("rule", RULES, ids=lambda each: each["alert"])
def test_a_rule_asks_series_that_exist_and_links_to_what_to_do(rule: dict[str, Any]) -> None:
    check_series(rule["expr"])
    assert rule["labels"]["severity"] in {"critical", "warning"}
    assert rule["annotations"]["summary"].endswith(".")
    page, _, anchor = rule["annotations"]["runbook"].partition("#")
    headings = re.findall(r"^## (\w+)\n\n(\S)", (ROOT / page).read_text(), re.MULTILINE)
    assert rule["alert"] in {heading for heading, _ in headings}
    assert anchor == rule["alert"].lower()


def test_the_page_of_alerts_has_no_other_headings() -> None:
    page = (ROOT / "docs/operate/alerts.md").read_text()
    assert re.findall(r"^## (.+)$", page, re.MULTILINE) == [each["alert"] for each in RULES]


def targets() -> Iterator[tuple[str, str]]:
    for panel in BOARD["panels"]:
        for target in panel.get("targets", ()):
            yield target["expr"], target["legendFormat"]


@pytest.mark.spec("OPS-8")
@pytest.mark.parametrize(("expression", "legend"), [*targets()])
def test_the_dashboard_asks_series_that_exist(expression: str, legend: str) -> None:
    check_series(expression, *re.findall(r"{{(\w+)}}", legend))


def test_panels_have_numbers_of_their_own_and_lie_beside_each_other() -> None:
    panels = BOARD["panels"]
    assert len({each["id"] for each in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for each in panels:
        at = each["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not cells & taken, each["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells
