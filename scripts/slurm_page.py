"""Writes what the nightly has shown on each release of Slurm into the pages for operators.

    python -m scripts.slurm_page

`docs/operate/slurm.md` has a table of promises and `slurm-stories.md` one of tests. Both come from
the newest results in bench/results alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from scripts.nightly import SHOWN, Result, newest
from scripts.spec import marked_tests

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "operate" / "slurm.md"
STORIES = PAGE.with_name("slurm-stories.md")
_TITLES = {
    "slurm-22.05": "22.05",
    "slurm-24.11": "24.11",
    "slurm-26.05": "26.05",
    "slurm-26.05-auth": "26.05, auth/slurm",
    "vm-22.05": "22.05, cgroup v2",
    "vm": "26.05, cgroup v2",
    "python-3.13": "24.11, Python 3.13",
    "python-3.14": "26.05, Python 3.14",
}
_AREAS = {
    "ALLOC": "jobs, submitting, history",
    "AUTH": "sign-in, rights, nodes' identity",
    "LIMIT": "limits",
    "ATTACH": "terminals",
    "LOG": "output",
    "SRC": "sources of figures",
    "TOP": "measurements, reports",
    "WATCH": "alerts, telemetry modes",
    "DIAG": "diagnosis",
    "COMPARE": "comparing runs",
    "RUN": "training runs",
    "SLICE": "GPU slices",
    "AUDIT": "audit log",
    "CLI": "commands, SDK",
    "OPS": "operation",
    "QUORUM": "agreed state",
    "TRY": "one server alone",
    "": "engines and ports",
}
_BEGIN, _END = "<!-- tested: begin -->", "<!-- tested: end -->"
_SIGNS = {"passed": "✓", "failed": "✗", "skipped": "–"}


@dataclass(frozen=True, slots=True)
class Column:
    """One part of the nightly: what became of each test, by its path and name."""

    title: str
    result: Result
    tests: Mapping[str, str]


def columns() -> list[Column]:
    """The parts that have run, in the order of the page."""
    found = [(part, newest(part)) for part in SHOWN]
    return [
        Column(_TITLES[part], result, by_function(result.tests))
        for part, result in found
        if result is not None and result.tests
    ]


def by_function(tests: Mapping[str, str]) -> dict[str, str]:
    """By `tests/e2e/test_logs.py::test_name`; the worst of its cases."""
    worst = ("failed", "passed", "skipped")
    found: dict[str, str] = {}
    for name, became in tests.items():
        place, _, function = name.partition("::")
        path = f"{place.replace('.', '/')}.py::{function.partition('[')[0]}"
        found[path] = min(became, found.get(path, became), key=worst.index)
    return found


def areas_of(test: str) -> set[str]:
    """The areas of the promises that a test names."""
    promises = next((each.promises for each in marked_tests() if each.name == test), ())
    return {each.partition("-")[0] for each in promises} or {""}


def table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table as Markdown has it."""
    titles = list(header)
    lines = [titles, ["---"] * len(titles), *map(list, rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def summary(shown: list[Column]) -> str:
    """How many tests pass, by area and column."""
    areas = {test: areas_of(test) for column in shown for test in column.tests}

    def cell(column: Column, area: str) -> str:
        became = [each for test, each in column.tests.items() if area in areas[test]]
        ran = [each for each in became if each != "skipped"]
        return f"{ran.count('passed')} of {len(ran)}" if ran else "–"

    rows = [
        [name, *(cell(column, area) for column in shown)]
        for area, name in _AREAS.items()
        if any(area in each for each in areas.values())
    ]
    rows.append(["date", *(column.result.date for column in shown)])
    return table(["tests that pass", *(column.title for column in shown)], rows)


def stories(shown: list[Column]) -> str:
    """What became of each test, by column."""
    names = sorted({test for column in shown for test in column.tests})
    rows = [
        [f"`{name}`", *(_SIGNS.get(column.tests.get(name, ""), "") for column in shown)]
        for name in names
    ]
    head = (
        "# Stories on each release of Slurm\n\n"
        "✓ passed, ✗ failed, – skipped, empty: not part of that run. Written by the nightly from\n"
        "its results; [Slurm's releases](slurm.md) has the summary.\n\n"
    )
    return head + table(["test", *(column.title for column in shown)], rows) + "\n"


def pages() -> dict[Path, str]:
    """Both pages as they should be."""
    shown = columns()
    before, _, rest = PAGE.read_text().partition(_BEGIN)
    after = rest.partition(_END)[2]
    page = f"{before}{_BEGIN}\n\n{summary(shown)}\n\n{_END}{after}"
    return {PAGE: page, STORIES: stories(shown)}


def write() -> None:
    for page, text in pages().items():
        page.write_text(text)


if __name__ == "__main__":
    write()
