"""`lattice admin quorum|backup|backups|verify|restore`: answers as lines, and exit codes."""

from __future__ import annotations

from typing import Any

import pytest

from lattice.base.command import Command
from lattice.features.state.command import BACKUP, BACKUPS, QUORUM, RESTORE, VERIFY
from tests.fakes.shell import FakeShell

NAME = "20261119T032011Z-hand-1a2b3c4d"
BACKUP_ANSWER: dict[str, Any] = {
    "name": NAME,
    "taken": "2026-11-19T03:20:11Z",
    "by": "olga",
    "cluster": "c0ffee",
    "epoch": 0,
    "revision": 41,
    "records": 12,
    "size_bytes": 2048,
    "version": "1",
    "store": "etcd",
}


def member(number: int, **changes: Any) -> dict[str, Any]:
    return {
        "name": f"e{number}:2379", "etcd_name": f"etcd-{number}", "id": f"a{number}", "reason": "",
        "answers": True, "version": "3.5.16", "size_bytes": 20480, "in_use_bytes": 16384,
        "is_leader": number == 1, "has_leader": True, "is_learner": False, "term": 3, "index": 99,
        "applied": 99,
    } | changes  # fmt: skip


def quorum(**changes: Any) -> dict[str, Any]:
    return {
        "store": "etcd", "healthy": True, "note": "", "cluster": "c0ffee", "epoch": 0,
        "leader": "etcd-1", "term": 3, "index": 99, "needed": 2, "may_fail": 1,
        "size_bytes": 20480, "alarms": [], "members": [member(1), member(2), member(3)],
    } | changes  # fmt: skip


def run(command: Command, path: str, answer: dict[str, Any], **values: Any) -> tuple[int, str]:
    shell = FakeShell({path: answer})
    return command.run(shell, **values), shell.out


@pytest.mark.spec("OPS-2")
def test_three_members() -> None:
    code, out = run(QUORUM, "/v1/raft/status", quorum())
    assert code == 0
    assert "leader etcd-1, term 3, index 99; 1 more may fail" in out
    assert out.count("etcd-") == 4


def test_a_lost_quorum_and_an_alarm() -> None:
    members = [member(1, answers=False, reason="is silent"), member(2, has_leader=False)]
    answer = quorum(
        healthy=False, note="0 of 2 members agree, and 2 are needed", members=members,
        alarms=["etcd-2: alarm:NOSPACE"],
    )  # fmt: skip
    code, out = run(QUORUM, "/v1/raft/status", answer)
    assert code == 1
    for text in ("the quorum is lost", "is silent", "knows no leader", "alarm:NOSPACE"):
        assert text in out


@pytest.mark.spec("OPS-2")
def test_one_server_alone() -> None:
    answer = quorum(store="single", note="no quorum, no high availability", members=[], leader="")
    code, out = run(QUORUM, "/v1/raft/status", answer)
    assert code == 0
    assert "no quorum, no high availability" in out
    assert "leader" not in out


def test_a_backup_and_the_list() -> None:
    code, out = run(BACKUP, "/v1/admin/backup", BACKUP_ANSWER)
    assert code == 0
    assert f"Backed up {NAME}: 12 records of revision 41" in out
    listed = {"name": NAME, "taken": "2026-11-19T03:20:11Z", "size_bytes": 2048}
    answer = {"location": "/b", "every_h": 6, "keep": 14, "backups": [listed]}
    code, out = run(BACKUPS, "/v1/admin/backups", answer)
    assert code == 0
    assert NAME in out
    code, out = run(BACKUPS, "/v1/admin/backups", answer | {"backups": []})
    assert (code, out) == (0, "")


@pytest.mark.spec("OPS-3")
def test_what_is_wrong_with_a_backup_is_named() -> None:
    bad = {"name": NAME, "sound": False, "problem": "part 1 is missing", "backup": None}
    code, out = run(VERIFY, "/v1/admin/backup/verify", bad, name=NAME)
    assert code == 76
    assert out.endswith(f"{NAME}: part 1 is missing\n")
    good = {"name": NAME, "sound": True, "problem": "", "backup": BACKUP_ANSWER}
    code, out = run(VERIFY, "/v1/admin/backup/verify", good, name=None)
    assert code == 0
    assert "12 records of revision 41" in out


def test_the_steps_of_a_restore() -> None:
    plan = {
        "backup": BACKUP_ANSWER,
        "by_server": False,
        "steps": ["On every server:\nsystemctl stop lattice-server", "On one"],
        "lost": "What changed since is lost.",
    }
    code, out = run(RESTORE, "/v1/admin/restore", plan, name=None)
    assert code == 0
    assert "  1. On every server:\n       systemctl stop lattice-server\n  2. On one\n" in out
    code, out = run(RESTORE, "/v1/admin/restore", plan | {"by_server": True}, name=None)
    assert "The server restores it when it starts next:" in out
