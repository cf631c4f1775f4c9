"""The dashboards ask only what the scoped API understands, and only what is in the catalogue."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from lattice.domain.metric import CATALOGUE, PREFIX
from lattice.features.prometheus.service.parser import parse
from lattice.features.prometheus.service.scope import CallerFilter, scoped
from lattice.features.prometheus.service.tree import Selector, selectors

FOLDER = Path(__file__).parents[4] / "infra/grafana"
BOARDS = [FOLDER / "job.json"]
"""Those of the scoped API. `operator.json` queries the site's own store."""
ALICE = CallerFilter("alice")
OWNERS = {"alloc", "attempt", "node", "user", "tenant", "project", "vcluster", "source"}


def filled(text: str) -> str:
    """As Grafana sends it."""
    values = {"$__rate_interval": "2m", "$alloc": "1@2", "$attempt": ".+"}
    for name, value in values.items():
        text = text.replace(name, value)
    assert "$" not in text, f"a variable that is not filled in: {text}"
    return text


def expressions(board: dict[str, Any]) -> Iterator[str]:
    for panel in board["panels"]:
        for target in panel["targets"]:
            yield target["expr"]


def named(selector: Selector) -> str:
    return next(each.value for each in selector.matchers if each.name == "__name__")


@pytest.mark.spec("TOP-6")
@pytest.mark.parametrize("file", BOARDS, ids=lambda each: each.name)
def test_every_expression_is_understood_narrowed_and_of_the_catalogue(file: Path) -> None:
    found = list(expressions(json.loads(file.read_text())))
    assert found
    for text in found:
        asked = filled(text)
        node = parse(asked)
        assert all(map(ALICE.admits, selectors(parse(scoped(node, ALICE)))))
        for each in selectors(node):
            name = named(each)
            metric = CATALOGUE[name.removeprefix(PREFIX)]
            assert metric.series == name
            for matcher in each.matchers:
                assert matcher.name in {"__name__", *OWNERS, *metric.label_names}, text
            assert any(one.name == "alloc" for one in each.matchers), "one job a dashboard"


@pytest.mark.spec("TOP-6")
@pytest.mark.parametrize("file", BOARDS, ids=lambda each: each.name)
def test_legends_and_groups_name_labels_that_are_there(file: Path) -> None:
    for panel in json.loads(file.read_text())["panels"]:
        for target in panel["targets"]:
            (name, *_) = [named(each) for each in selectors(parse(filled(target["expr"])))]
            known = OWNERS | set(CATALOGUE[name.removeprefix(PREFIX)].label_names)
            assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= known


@pytest.mark.spec("TOP-6")
@pytest.mark.parametrize("file", BOARDS, ids=lambda each: each.name)
def test_the_choices_are_label_calls_of_known_series(file: Path) -> None:
    for each in json.loads(file.read_text())["templating"]["list"]:
        if each["type"] != "query":
            continue
        found = re.fullmatch(r"label_values\((.+), (\w+)\)", each["query"])
        assert found
        (selector,) = selectors(parse(filled(found[1])))
        assert named(selector).removeprefix(PREFIX) in CATALOGUE
        assert found[2] in OWNERS


@pytest.mark.spec("TOP-6")
def test_the_viewers_own_token_goes_along() -> None:
    (source,) = yaml.safe_load((FOLDER / "datasource.yaml").read_text())["datasources"]
    assert source["jsonData"]["oauthPassThru"] is True
    assert source["url"].endswith("/prometheus")
