"""A control group is thawed in every hierarchy, with all below it."""

from __future__ import annotations

from pathlib import Path

from lab.cgroup import ControlGroup, Hierarchies


def test_what_is_frozen_is_thawed_and_nothing_else_is_written(tmp_path: Path) -> None:
    v1, v2 = tmp_path / "freezer", tmp_path / "unified"
    before = {
        v1 / "a/freezer.state": "THAWED\n",
        v1 / "a/job/freezer.state": "FROZEN\n",
        v1 / "a/job/step/freezer.state": "FREEZING\n",
        v1 / "b/freezer.state": "FROZEN\n",
        v2 / "a/cgroup.freeze": "1\n",
        v2 / "a/job/cgroup.freeze": "0\n",
    }
    for file, text in before.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    ControlGroup(Hierarchies((v1,), v2), "a", everywhere=True).thaw()
    changed = {file: file.read_text() for file, text in before.items() if file.read_text() != text}
    assert changed == {
        v1 / "a/job/freezer.state": "THAWED",
        v1 / "a/job/step/freezer.state": "THAWED",
        v2 / "a/cgroup.freeze": "0",
    }
