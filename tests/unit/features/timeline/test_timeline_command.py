"""`lattice timeline`: the text, and the page that opens without a network."""

from __future__ import annotations

import json
import re
import sqlite3
import stat
from contextlib import closing
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from lattice.base.errors import UsageError
from lattice.base.fast_start import argv
from lattice.base.text import cells
from lattice.features.timeline.command import TIMELINE
from tests.fakes.shell import COMMON_OPTIONS, FakeShell
from tests.unit.observe.test_mlflow_file import TABLES

EVIL = '<script src="http://x/a.js">\x1b[31m&"\''


def at(minute: int) -> str:
    return f"2026-11-15T13:{minute:02}:00Z"


def line(name: str, values: list[float], **more: Any) -> dict[str, Any]:
    points = [{"time": at(10 + 2 * n), "value": value} for n, value in enumerate(values)]
    return {"name": name, "points": points} | more


ANSWER: dict[str, Any] = {
    "allocation": "42@1",
    "id": "42",
    "job_id": 42,
    "cluster": "lab",
    "name": EVIL,
    "user": "alice",
    "state": "running",
    "begin": at(0),
    "until": "2026-11-15T14:00:00Z",
    "finished": False,
    "attempts": [
        {"number": 1, "state": "preempted", "submitted": at(0), "started": at(10), "nodes": "n1"},
        {"number": 2, "state": "running", "submitted": at(30), "started": at(40), "nodes": EVIL},
    ],
    "phases": [
        {"kind": "waiting", "attempt": 1, "started": at(0), "ended": at(10)},
        {"kind": "running", "attempt": 1, "started": at(10), "ended": at(30)},
        {"kind": "waiting", "attempt": 2, "started": at(30), "ended": at(40)},
        {"kind": "running", "attempt": 2, "started": at(40), "ended": None},
    ],
    "runs": [
        {
            "id": "r1",
            "name": EVIL,
            "experiment": EVIL,
            "user": "alice",
            "status": "running",
            "started": at(12),
            "ended": None,
            "allocation": "42@1",
            "attempts": [1, 2],
            "metrics": [{"name": EVIL, "value": 0.5, "step": 3, "time": at(20)}],
        }
    ],
    "events": [
        {"kind": "alert", "time": at(45), "lasts": True, "node": "n1", "text": EVIL},
        {"kind": "session", "time": at(15), "ended": at(20), "node": "n1"},
        {"kind": "read", "time": at(50), "ended": at(50), "text": "bob (shared)"},
        {"kind": "preempted", "time": at(29)},
    ],
    "lines": [
        line("gpu_utilization", [0, 50, 100], unit="%", attempt=1, step_s=120, via="store"),
        line("loss", [2.0, 1.0, 0.5], run="r1"),
        line(EVIL, [1.0], run="r1"),
    ],
    "missing": [f"Figures of attempt 2: {EVIL}."],
}


def run(*words: str, **shell_parts: Any) -> FakeShell:
    shell = FakeShell({"/v1/allocations/42/timeline": ANSWER}, **shell_parts)
    values = argv.read(TIMELINE, ("42", *words))
    assert values is not None, words
    given = {name: value for name, value in values.items() if name not in COMMON_OPTIONS}
    assert TIMELINE.run(shell, **given) == 0
    return shell


def test_every_row_is_on_one_axis() -> None:
    rows = {each[:22].strip(): each[22:] for each in run(width=106).out.splitlines()}
    columns = 60
    assert rows["attempt 1"][:columns] == "·" * 10 + "━" * 20 + " " * 30
    assert rows["attempt 2"][:columns] == " " * 30 + "·" * 10 + "━" * 20
    assert rows["session n1"][:columns].strip() == "▬" * 5
    assert rows["session n1"].index("▬") == 15
    assert rows["alert n1"][:columns] == " " * 45 + "▲" * 15
    assert rows["preempted"].index("╳") == 29
    figure = rows["gpu_utilization"][:columns]
    assert figure.strip() == "▁▁▅▅█"
    assert figure.index("▁") == 10
    assert "0% to 100%" in rows["gpu_utilization"]


def test_the_text_is_inert_and_within_the_terminal() -> None:
    for width in (60, 80, 200):
        shell = run(width=width)
        assert "\x1b" not in shell.out
        body = shell.out.splitlines()[1:-2]
        assert all(cells(each) <= max(width, 66) for each in body)


def test_what_is_missing_is_said() -> None:
    assert "Figures of attempt 2" in run().out


def test_json_has_every_point() -> None:
    found = json.loads(run(output="json").out)
    assert len(found["lines"][1]["points"]) == 3


class Page(HTMLParser):
    """Checks the tags and keeps the attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += attrs


def test_the_page_is_one_file_without_any_address(tmp_path: Path) -> None:
    file = tmp_path / "run.html"
    shell = run("--html", str(file))
    assert shell.out == ""
    text = file.read_text()
    page = Page()
    page.feed(text)
    assert not page.tags & {"script", "link", "img", "iframe", "object", "a", "image", "use"}
    names = {name for name, _ in page.attributes}
    assert not names & {"src", "href", "xlink:href", "srcset", "action", "onload", "onclick"}
    assert "default-src 'none'" in text
    assert not re.search(r"url\(|@import", text)
    # The name of the job holds one; it is text there.
    assert "<script" not in text
    assert "&lt;script" in text
    assert "\x1b" not in text
    assert "<rect" in text
    assert "<polyline" in text


def test_the_page_is_for_its_owner_and_replaced_whole(tmp_path: Path) -> None:
    file = tmp_path / "run.html"
    file.write_text("old")
    file.chmod(0o644)
    run("--html", str(file))
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert file.read_text().startswith("<!doctype html>")
    assert [each.name for each in tmp_path.iterdir()] == ["run.html"]


def test_a_page_that_cannot_be_written_is_a_mistake_of_usage(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="can't be written"):
        run("--html", str(tmp_path / "none" / "run.html"))


def test_runs_of_a_file_are_on_the_axis_too(tmp_path: Path) -> None:
    file = tmp_path / "ml.db"
    began = 1794749460000
    with closing(sqlite3.connect(file)) as base:
        base.executescript(TABLES)
        base.execute("UPDATE runs SET start_time = ?", (began,))
        base.execute("UPDATE metrics SET timestamp = ? + step * 60000", (began,))
        base.commit()
    found = json.loads(run("--mlflow", str(file), output="json").out)
    # The server has r1.
    assert [each["id"] for each in found["runs"]] == ["r1", "r2"]
    with closing(sqlite3.connect(file)) as base:
        base.execute("UPDATE runs SET run_uuid = 'r9' WHERE run_uuid = 'r1'")
        for table in ("tags", "metrics", "latest_metrics"):
            base.execute(f"UPDATE {table} SET run_uuid = 'r9' WHERE run_uuid = 'r1'")
        base.commit()
    uri = {"MLFLOW_TRACKING_URI": f"sqlite:///{file}"}
    found = json.loads(run(output="json", environment=uri).out)
    assert "r9" in {each["id"] for each in found["runs"]}
    (loss,) = [each for each in found["lines"] if each["run"] == "r9"]
    assert [each["value"] for each in loss["points"]] == [0.5, 0.25]


def test_a_file_that_is_none_is_named_and_the_rest_is_shown(tmp_path: Path) -> None:
    shell = run("--mlflow", str(tmp_path / "none.db"))
    assert "attempt 2" in shell.out
    assert "none.db" in shell.out
