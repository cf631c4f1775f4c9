"""`lattice runs`: from words to calls, and what a file of MLflow adds."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from lattice.base.errors import Unavailable, UsageError
from lattice.base.fast_start import argv
from lattice.features.runs.command import RUNS
from tests.fakes.answers import allocation
from tests.fakes.shell import COMMON_OPTIONS, FakeShell
from tests.unit.observe.test_mlflow_file import TABLES

STARTED = "2026-11-15T13:31:00Z"
RUN = {
    "id": "r1",
    "name": "fit\x1b[31m",
    "experiment": "vision",
    "user": "alice",
    "status": "running",
    "started": STARTED,
    "ended": None,
    "allocation": "12345@1795000000",
    "attempts": [1, 2],
    "metrics": [
        {"name": "lr", "value": 0.1, "step": 9, "time": STARTED},
        {"name": "train_loss", "value": 0.25, "step": 9, "time": STARTED},
    ],
}
SILENT = {"name": "mlflow", "ok": False, "error": "it answered 503"}


def answer(*runs: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"runs": list(runs), "sources": [], "allocation": allocation()} | more


def run(*words: str, routes: dict[str, Any], **shell_parts: Any) -> FakeShell:
    shell = FakeShell(routes, **shell_parts)
    values = argv.read(RUNS, words)
    assert values is not None, words
    given = {name: value for name, value in values.items() if name not in COMMON_OPTIONS}
    assert RUNS.run(shell, **given) == 0
    return shell


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """With two runs of job 12345, of which the server knows r1."""
    path = tmp_path / "ml.db"
    with closing(sqlite3.connect(path)) as base:
        base.executescript(TABLES)
        base.execute("UPDATE tags SET value = '12345'")
        # The time of the job: 2026-11-15 13:30 and later.
        base.execute("UPDATE runs SET start_time = 1794749460000")
        base.commit()
    return path


def test_a_run_is_one_line_with_its_newest_values() -> None:
    shell = run("12345", routes={"/v1/allocations/12345/runs": answer(RUN)})
    _, line = shell.out.splitlines()
    assert "train_loss 0.25, lr 0.1" in line
    assert "1, 2" in line
    assert "\x1b" not in shell.out


def test_a_name_is_asked_for() -> None:
    shell = run("--name", "fit", routes={"/v1/runs": answer(RUN)})
    assert dict(shell.calls[0].params) == {"name": "fit"}
    assert "12345" in shell.out


def test_both_are_refused() -> None:
    with pytest.raises(UsageError):
        run("12345", "--name", "fit", routes={})


@pytest.mark.parametrize("by", ["option", "variable"])
def test_a_file_adds_what_the_server_lacks(file: Path, by: str) -> None:
    routes = {"/v1/allocations/12345/runs": answer(RUN)}
    if by == "option":
        shell = run("12345", "--mlflow", str(file), routes=routes)
    else:
        shell = run(
            "12345", routes=routes, environment={"MLFLOW_TRACKING_URI": f"sqlite:///{file}"}
        )
    _, *lines = shell.out.splitlines()
    assert [line.split()[-1] for line in lines] == ["r1", "r2"]


def test_a_name_in_a_file_leads_to_its_allocation(file: Path) -> None:
    routes = {"/v1/runs": answer(), "/v1/allocations/12345/runs": answer()}
    shell = run("--name", "test", "--mlflow", str(file), routes=routes)
    _, line = shell.out.splitlines()
    assert "12345" in line
    assert line.split()[-1] == "r2"


def test_a_name_in_a_file_of_a_job_that_is_not_there(file: Path) -> None:
    shell = run("--name", "test", "--mlflow", str(file), routes={"/v1/runs": answer()})
    assert shell.out == ""


def test_a_file_that_is_none_is_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    path.write_text("no database")
    routes = {"/v1/allocations/12345/runs": answer(RUN)}
    shell = run("12345", "--mlflow", str(path), routes=routes)
    assert "r1" in shell.out
    assert "other.db" in shell.warnings[0]


def test_a_silent_server_of_mlflow_is_a_warning_beside_runs_of_a_file(file: Path) -> None:
    routes = {"/v1/allocations/12345/runs": answer(sources=[SILENT])}
    shell = run("12345", "--mlflow", str(file), routes=routes)
    assert "r2" in shell.out
    assert shell.warnings == ["MLflow does not answer: it answered 503"]


def test_where_nothing_could_be_read_nobody_says_that_there_are_no_runs(tmp_path: Path) -> None:
    routes = {"/v1/allocations/12345/runs": answer(sources=[SILENT])}
    with pytest.raises(Unavailable, match=r"not known .*it answered 503; .*ml\.db: it can't be op"):
        run("12345", "--mlflow", str(tmp_path / "ml.db"), routes=routes)


def test_without_a_job_the_option_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def outside_a_job(shell: FakeShell, word: str | None) -> str:
        raise UsageError("Missing argument 'ID'.", hint="`lattice status` lists your ids.")

    monkeypatch.setattr(FakeShell, "reference", outside_a_job)
    with pytest.raises(UsageError) as refused:
        run(routes={})
    assert "--name RUN" in str(refused.value.hint)


def test_nothing_says_what_to_do() -> None:
    shell = run("12345", routes={"/v1/allocations/12345/runs": answer()})
    assert "--mlflow FILE" in shell.notes[0]


def lineage(*runs: dict[str, Any], links: Any = (), notes: Any = ()) -> dict[str, Any]:
    return {"runs": list(runs), "links": list(links), "notes": list(notes)}


@pytest.mark.spec("RUN-2")
def test_a_lineage_shows_who_wrote_what_was_loaded() -> None:
    wrote = RUN | {"id": "r0", "name": "pre", "saved": ["a" * 64], "loaded": []}
    loaded = RUN | {"saved": [], "loaded": ["a" * 64]}
    link = {"checksum": "a" * 64, "saved_by": "r0", "loaded_by": "r1"}
    chain = lineage(wrote, loaded, links=[link], notes=["A note\x1b[2J."])
    shell = run(
        "12345", "--lineage", routes={"/v1/allocations/12345/runs": answer(RUN, lineage=chain)}
    )
    assert dict(shell.calls[0].params)["lineage"] == "true"
    _, first, second, note = shell.out.splitlines()
    assert "aaaaaaaaaaaa" in first
    assert "aaaaaaaaaaaa of pre" in second
    assert note.startswith("— A note")
    assert "\x1b" not in shell.out


def test_a_lineage_takes_an_allocation() -> None:
    with pytest.raises(UsageError):
        run("--name", "fit", "--lineage", routes={})


@pytest.mark.spec("RUN-2")
def test_a_lineage_in_a_file_leads_to_other_jobs(file: Path) -> None:
    with closing(sqlite3.connect(file)) as base:
        base.executescript(
            f"INSERT INTO tags VALUES ('checkpoint.loaded.sha256', '{'a' * 64}', 'r2'),"
            f" ('checkpoint.saved.sha256', '{'a' * 64}', 'r9'),"
            f" ('checkpoint.saved.sha256', '{'a' * 64}', 'r8'),"
            " ('slurm.job.id', '777', 'r8'), ('slurm.job.id', '12346', 'r9');"
            "INSERT INTO runs VALUES ('r9', 'pre', 'alice', 'FINISHED', 1794749450000, NULL,"
            " 'active', 1), ('r8', 'foreign', 'bob', 'FINISHED', 1794749450000, NULL, 'active', 1);"
        )
        base.commit()
    other = allocation() | {"id": "12346", "job_id": 12346}
    routes = {
        "/v1/allocations/12345/runs": answer(lineage=lineage()),
        "/v1/allocations/12346/runs": answer() | {"allocation": other},
    }
    shell = run("12345", "--lineage", "--mlflow", str(file), routes=routes)
    assert "aaaaaaaaaaaa of pre (12346)" in shell.out
    assert "foreign" not in shell.out
