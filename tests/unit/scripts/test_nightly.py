"""The nightly's own sums: counting, naming what was tested, and what green means."""

from __future__ import annotations

import json
from pathlib import Path
from typing import IO

import pytest

from scripts import nightly
from scripts.nightly import (
    OLDER_AGENTS,
    PARTS,
    ROOT,
    Tally,
    cgroup_version,
    fuzz_tally,
    status,
    tally,
)

REPORT = """<testsuites><testsuite>
<testcase classname="tests.a" name="test_one"/>
<testcase classname="tests.a" name="test_two"><failure message="no"/></testcase>
<testcase classname="tests.b" name="test_three"><error message="no lab"/></testcase>
<testcase classname="tests.b" name="test_four"><skipped message="no root"/></testcase>
</testsuite></testsuites>"""


def test_a_report_is_counted() -> None:
    assert tally(REPORT) == Tally(
        passed=1,
        failed=2,
        skipped=1,
        failures=["tests.a::test_two", "tests.b::test_three"],
        tests={
            "tests.a::test_one": "passed",
            "tests.a::test_two": "failed",
            "tests.b::test_three": "failed",
            "tests.b::test_four": "skipped",
        },
    )


def test_two_tallies_are_added() -> None:
    one = Tally(2, 1, 0, ["a"], {"a": "failed", "b": "passed", "c": "passed"})
    other = Tally(0, 0, 1, [], {"d": "skipped"})
    assert one + other == Tally(2, 1, 1, ["a"], one.tests | other.tests)


def test_each_fuzzed_target_is_a_case() -> None:
    lines = [
        {"target": "http1", "runs": 9, "failures": []},
        {"target": "promql", "runs": 3, "failures": ["found-1234"]},
    ]
    assert fuzz_tally("".join(json.dumps(each) + "\n" for each in lines)) == Tally(
        passed=1, failed=1, failures=["fuzz promql: found-1234"]
    )


def fuzzed(folder: Path, monkeypatch: pytest.MonkeyPatch, said: str, ended: int | None) -> Tally:
    def call(argv: list[str], deadline_s: float, *, output: IO[str]) -> int | None:
        output.write(said)
        output.flush()
        return ended

    monkeypatch.setattr(nightly, "_call", call)
    return PARTS["fuzz"](folder, 0.0)


def test_fuzzing_that_ends_in_no_report_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passing = json.dumps({"target": "http1", "failures": []}) + "\n"
    assert fuzzed(tmp_path, monkeypatch, passing, 0) == Tally(passed=1)
    assert fuzzed(tmp_path, monkeypatch, passing, 2).failures == ["exit status 2"]
    late = fuzzed(tmp_path, monkeypatch, passing, None)
    assert (late.passed, late.failed) == (1, 1)
    assert late.failures == ["not done after 60 minutes"]


@pytest.mark.parametrize(
    ("mounts", "version"),
    [
        ("cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n", "v2"),
        ("cgroup /sys/fs/cgroup/memory cgroup rw 0 0\n", "v1"),
        ("c /sys/a cgroup rw 0 0\nd /sys/b cgroup2 rw 0 0\n", "v1 and v2 (hybrid)"),
        ("proc /proc proc rw 0 0\n", "none"),
    ],
)
def test_the_version_of_cgroups(mounts: str, version: str) -> None:
    assert cgroup_version(mounts) == version


def written(folder: Path, part: str, *, date: str, tree: str, failed: int = 0) -> None:
    found = {
        "part": part,
        "date": date,
        "commit": "abc",
        "tree": tree,
        "passed": 3,
        "failed": failed,
        "skipped": 0,
        "seconds": 1.0,
        "kernel": "6",
        "cgroup": "v1",
        "failures": [],
    }
    (folder / f"{date}-nightly-{part}.json").write_text(json.dumps(found))


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(nightly, "RESULTS", tmp_path)
    monkeypatch.setattr(nightly, "tree", lambda: "this")
    for part in PARTS:
        written(tmp_path, part, date="2026-01-02", tree="this")
    return tmp_path


def test_green_is_every_part_passing_on_this_tree(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status()
    assert "Nightly is green." in capsys.readouterr().out


@pytest.mark.parametrize(("failed", "ended"), [(0, "passed"), (1, "failed")])
def test_a_part_that_ran_on_another_tree_is_not_green(
    results: Path, capsys: pytest.CaptureFixture[str], failed: int, ended: str
) -> None:
    written(results, "vm", date="2026-01-03", tree="other", failed=failed)
    assert not status()
    assert f"{ended} on another tree (2026-01-03, abc)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("file", "outdates"),
    [
        ("src/lattice/__init__.py", True),
        ("tests/e2e/test_logs.py", True),
        ("bench/soak/gaps.py", True),
        ("bench/results/2026-01-02-nightly-vm.json", False),
        ("docs/guide/sdk.md", True),
        ("docs/threat-model.md", False),
        ("changes/+a.fixed.md", False),
        ("README.md", False),
    ],
)
def test_a_result_is_outdated_by_what_a_part_reads(
    monkeypatch: pytest.MonkeyPatch, file: str, outdates: bool
) -> None:
    listed = {"pyproject.toml": "1", file: "1"}

    def git(*words: str) -> str:
        lines = [f"100644 blob {blob}\t{name}" for name, blob in listed.items()]
        return "\n".join(lines) if words[0] == "ls-tree" else ""

    monkeypatch.setattr(nightly, "_git", git)
    before = nightly.tree()
    listed[file] = "2"
    assert (nightly.tree() != before) is outdates


def test_the_newest_result_counts(results: Path) -> None:
    written(results, "vm", date="2026-01-01", tree="this", failed=1)
    assert status()
    written(results, "vm", date="2026-01-03", tree="this", failed=1)
    assert not status()


def test_a_part_that_never_ran_is_not_green(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (results / "2026-01-02-nightly-soak.json").unlink()
    assert not status()
    assert "soak         never run" in capsys.readouterr().out


def test_the_stories_with_older_agents_are_there() -> None:
    assert "older-agents" in PARTS
    files = [(ROOT / each).read_text() for each in OLDER_AGENTS]
    assert all("pytest.mark.story" in each for each in files)
