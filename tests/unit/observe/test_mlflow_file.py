"""MLflow's SQLite file: what is read of it, and what it can't do."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from lattice.domain.training_run import RunStoreSilent
from lattice.observe.mlflow_file import MlflowFile, mlflow_file

TABLES = """
CREATE TABLE experiments (experiment_id INTEGER, name TEXT);
CREATE TABLE runs (run_uuid TEXT, name TEXT, user_id TEXT, status TEXT, start_time BIGINT,
  end_time BIGINT, lifecycle_stage TEXT, experiment_id INTEGER);
CREATE TABLE tags (key TEXT, value TEXT, run_uuid TEXT);
CREATE TABLE metrics (key TEXT, value FLOAT, timestamp BIGINT, step BIGINT, is_nan BOOLEAN,
  run_uuid TEXT);
CREATE TABLE latest_metrics (key TEXT, value FLOAT, timestamp BIGINT, step BIGINT,
  is_nan BOOLEAN, run_uuid TEXT);
CREATE TABLE params (key TEXT, value TEXT, run_uuid TEXT);
INSERT INTO experiments VALUES (1, 'vision');
INSERT INTO runs VALUES ('r1', 'fit', 'alice', 'RUNNING', 1795000000000, NULL, 'active', 1);
INSERT INTO runs VALUES ('r2', 'test', 'alice', 'FINISHED', 1795000100000, 1795000200000,
  'active', 1);
INSERT INTO runs VALUES ('r3', 'fit', 'alice', 'FAILED', 1795000300000, NULL, 'deleted', 1);
INSERT INTO tags VALUES ('slurm.job.id', '42', 'r1'), ('slurm.job.id', '42', 'r2'),
  ('slurm.job.id', '42', 'r3');
INSERT INTO params VALUES ('lr', '0.1', 'r1'), ('hub_token', 'hf_abc', 'r1'),
  ('max_tokens', '512', 'r1'), ('tokenizer', 'gpt2', 'r1');
INSERT INTO latest_metrics VALUES ('loss', 0.25, 1795000050000, 9, 0, 'r1'),
  ('bad', 0, 1795000050000, 9, 1, 'r1');
INSERT INTO metrics VALUES ('loss', 0.5, 1795000040000, 8, 0, 'r1'),
  ('loss', 0.25, 1795000050000, 9, 0, 'r1'), ('loss', 0, 1795000060000, 10, 1, 'r1');
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "ml flow?#%.db"
    with closing(sqlite3.connect(file)) as base:
        base.executescript(TABLES)
    return file


def test_runs_of_a_job_newest_first_without_deleted_ones(path: Path) -> None:
    found = MlflowFile(path).of_job(42)
    assert [(each.id, each.name, each.status) for each in found] == [
        ("r2", "test", "finished"),
        ("r1", "fit", "running"),
    ]
    assert [(each.name, each.value, each.step) for each in found[1].metrics] == [("loss", 0.25, 9)]
    assert MlflowFile(path).of_job(43) == ()


def test_parameters_are_read_without_secrets(path: Path) -> None:
    assert MlflowFile(path).of_job(42)[1].parameters == {
        "hub_token": "[redacted]",
        "lr": "0.1",
        "max_tokens": "512",
        "tokenizer": "gpt2",
    }


def test_a_run_is_found_by_its_name_and_by_its_id(path: Path) -> None:
    assert [each.id for each in MlflowFile(path).named("fit")] == ["r1"]
    assert [each.id for each in MlflowFile(path).named("r2")] == ["r2"]
    assert MlflowFile(path).named("fit' OR '1' = '1") == ()


def test_a_history_is_in_order_and_without_what_is_no_number(path: Path) -> None:
    points = MlflowFile(path).history("r1", "loss")
    assert [(each.step, each.value) for each in points] == [(8, 0.5), (9, 0.25)]


def test_the_file_is_not_changed_nor_made(path: Path, tmp_path: Path) -> None:
    path.chmod(0o400)
    before = path.read_bytes()
    MlflowFile(path).of_job(42)
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == [path.name]
    with pytest.raises(RunStoreSilent):
        MlflowFile(tmp_path / "none.db").of_job(42)
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("content", [b"", b"no database", b"SQLite format 3\0" + b"\xff" * 5000])
def test_another_file_is_a_reason(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "other.db"
    file.write_bytes(content)
    with pytest.raises(RunStoreSilent):
        MlflowFile(file).of_job(42)


def test_a_file_that_computes_for_ever_is_given_up(tmp_path: Path) -> None:
    file = tmp_path / "endless.db"
    with closing(sqlite3.connect(file)) as base:
        base.executescript(TABLES)
        base.executescript(
            "DROP TABLE tags; CREATE VIEW tags AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL "
            "SELECT i + 1 FROM n) SELECT 'slurm.job.id' AS key, '42' AS value, 'none' || i AS "
            "run_uuid FROM n;"
        )
    with pytest.raises(RunStoreSilent, match="too long"):
        MlflowFile(file, limit_s=0.2).of_job(42)


def test_odd_values_are_left_out(path: Path) -> None:
    with closing(sqlite3.connect(path)) as base:
        base.executescript(
            "INSERT INTO runs VALUES ('r4', x'ff00', 7, NULL, 'yesterday', NULL, 'active', 1);"
            "INSERT INTO runs VALUES ('r5', NULL, NULL, NULL, 1795000400000, -1, 'active', 9);"
            "INSERT INTO tags VALUES ('slurm.job.id', '42', 'r4'), ('slurm.job.id', '42', 'r5'),"
            " (NULL, NULL, 'r5');"
            "INSERT INTO latest_metrics VALUES ('loss', 'high', 1795000050000, 1, 0, 'r5'),"
            " ('lr', 9e999, 1795000050000, 1, 0, 'r5'), ('ok', 1, 1795000050000, 'a', 0, 'r5');"
        )
    newest = MlflowFile(path).of_job(42)[0]
    assert (newest.id, newest.name, newest.experiment, newest.ended) == ("r5", "", "", None)
    assert [(each.name, each.step) for each in newest.metrics] == [("ok", 0)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("sqlite:////scratch/ml.db", Path("/scratch/ml.db")),
        ("sqlite:///ml.db", Path("ml.db")),
        ("sqlite:///ml.db?mode=rwc", None),
        ("sqlite:///", None),
        ("http://169.254.169.254/", None),
        ("file:///etc/passwd", None),
        ("", None),
    ],
)
def test_only_a_file_of_sqlite_is_taken_from_the_environment(
    text: str, expected: Path | None
) -> None:
    assert mlflow_file({"MLFLOW_TRACKING_URI": text}) == expected
