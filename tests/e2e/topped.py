"""`lattice top` and jobs to look at, as stories use them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lab.laboratory import Lab
from tests.e2e.people import Person
from tests.eventually import eventually

WORKS = "while :; do i=0; while [ $i -lt 20000 ]; do i=$((i + 1)); done; sleep 0.2; done"
"""For a shell: something to measure, and the rest of the machine for those who measure."""
BUSY = f"timeout 600 sh -c '{WORKS}'"


@contextmanager
def debugged(lab: Lab, person: Person, *words: str, wrap: str = BUSY) -> Iterator[int]:
    """A running job that is measured every second, and cancelled in the end."""
    job = lab.sbatch(person.name, *(words or ("-w", "n1")), wrap=wrap)
    try:
        lab.wait_job_state(job, "RUNNING")
        switched = eventually(
            lambda: person.tries("telemetry", str(job), "--mode", "debug"),
            lambda said: said.code == 0,
        )
        assert "debug" in switched.out
        yield job
    finally:
        lab.run_as(person.name, ["scancel", str(job)])


def top(person: Person, job: int | str, *words: str) -> dict[str, Any]:
    """One look, as data; empty while there is none."""
    said = person.tries("top", str(job), "--once", "-o", "json", *words)
    return {} if said.code else dict(_read(said.out))


def _read(text: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text)
    return found


def row(answer: dict[str, Any], node: str = "") -> dict[str, Any]:
    """The row of a node, or the summary."""
    return next((each for each in answer.get("rows", ()) if each["node"] == node), {})


def cell(answer: dict[str, Any], metric: str, node: str = "") -> dict[str, Any]:
    cells = row(answer, node).get("cells", ())
    return next((each for each in cells if each["metric"] == metric), {})


def measured_top(person: Person, job: int, *words: str, node: str = "") -> dict[str, Any]:
    """The first look that has a processor share in it."""
    return eventually(
        lambda: top(person, job, *words),
        lambda answer: cell(answer, "cpu_utilization", node).get("value") is not None,
    )
