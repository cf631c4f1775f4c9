"""`lattice diag`, and jobs to look at with it, as stories use them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import yaml

from lab.laboratory import Lab
from tests.e2e.people import Person
from tests.e2e.put_right import NODES, administrator, linked
from tests.e2e.topped import debugged, measured_top
from tests.eventually import PATIENCE_S, eventually

PAUSE_S = 2.1
"""Between two pages: thirty a minute are allowed."""


def page(person: Person, job: int) -> dict[str, Any]:
    found: dict[str, Any] = person.asks("diag", str(job))
    return found


def sick(answer: dict[str, Any]) -> dict[str, set[str]]:
    """Each rule that cries, with the nodes it names."""
    found: dict[str, set[str]] = {}
    for each in answer["findings"]:
        if each["verdict"] in {"attention", "bad"}:
            names = {subject["node"] for subject in each["subjects"]}
            found.setdefault(each["rule"], set()).update(names)
    return found


def told(
    person: Person, job: int, rule: str, patience_s: float = PATIENCE_S
) -> dict[str, set[str]]:
    """What cries once that rule does."""
    return sick(telling(person, job, rule, patience_s))


def telling(person: Person, job: int, rule: str, patience_s: float = PATIENCE_S) -> dict[str, Any]:
    """The first page on which that rule cries."""
    return eventually(
        lambda: page(person, job),
        lambda found: rule in sick(found),
        patience_s=patience_s,
        pause_s=PAUSE_S,
    )


def line(answer: dict[str, Any], rule: str) -> dict[str, Any]:
    """The one sick line of a rule."""
    (found,) = [
        each
        for each in answer["findings"]
        if each["rule"] == rule and each["verdict"] in {"attention", "bad"}
    ]
    return dict(found)


@contextmanager
def healthy(lab: Lab, alice: Person, *words: str, wrap: str) -> Iterator[int]:
    """A job that is measured, and of which nobody has anything to say."""
    with debugged(lab, alice, *words, wrap=wrap) as job:
        measured_top(alice, job)
        assert sick(page(alice, job)) == {}
        yield job


@contextmanager
def measured_against(lab: Lab, targets: Mapping[str, Any]) -> Iterator[None]:
    """Servers with other targets than the usual."""
    before = {each: yaml.safe_load(each.config_file.read_text()) for each in lab.servers}
    olga = administrator(lab)
    try:
        for server, usual in before.items():
            server.write_config(usual | {"diag": dict(targets)})
            server.process.restart()
        eventually(lambda: set(linked(olga)), lambda seen: seen == set(NODES))
        yield
    finally:
        for server, usual in before.items():
            server.write_config(usual)
            server.process.restart()
        eventually(lambda: set(linked(olga)), lambda seen: seen == set(NODES))
