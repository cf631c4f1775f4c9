"""A program as its user: with the profile before it, or without anything of the user's."""

from __future__ import annotations

import json
import os
import pwd
from pathlib import Path

import pytest

from lattice.domain.grant import Act, Grant
from lattice.domain.privileged import Outcome
from lattice.domain.submission import CancelQuestion
from lattice.helper import gate as gate_module
from lattice.helper import login
from lattice.helper.account import Accounts, LoginDefaults
from lattice.helper.gate import Gate, Slurm
from lattice.helper.login import LoginEnded, Program
from lattice.helper.privilege import Kernel

DEFAULTS = LoginDefaults.read()


def _account(home: Path) -> pwd.struct_passwd:
    return pwd.struct_passwd(("me", "x", os.getuid(), os.getgid(), "", str(home), "/bin/sh"))


def _run(program: Program, monkeypatch: pytest.MonkeyPatch) -> LoginEnded:
    """In a process of its own: `run` ends all children of the one it is called in."""
    monkeypatch.setattr(login, "become", lambda *_: None)
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            ended = login.run(Kernel(), DEFAULTS, program, 30.0)
            os.write(writer, json.dumps([ended.code, ended.out, ended.err]).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answer:
        code, out, err = json.loads(answer.read())
    os.waitpid(pid, 0)
    return LoginEnded(code, out, err, "", ())


@pytest.mark.spec("ALLOC-4", "LIMIT-4")
@pytest.mark.parametrize("with_profile", [True, False])
def test_the_profile_is_read_only_where_it_is_needed(
    tmp_path: Path, with_profile: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".profile").write_text(f"touch {tmp_path}/read\n")
    script = 'echo "out $1 $PWD $HOME"; echo err >&2; cat; exit 3'
    program = Program(
        account=_account(tmp_path),
        argv=["/bin/sh", "-c", script, "sh", "a  b"],
        environment={},
        directory="/",
        with_profile=with_profile,
    )
    ended = _run(program, monkeypatch)
    assert (ended.code, ended.out, ended.err) == (3, f"out a  b / {tmp_path}\n", "err\n")
    assert (tmp_path / "read").exists() is with_profile


@pytest.mark.spec("ALLOC-4", "LIMIT-4")
@pytest.mark.threat("profile-gate")
def test_cancelling_reads_no_profile_and_enters_no_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[Program] = []

    def run(_: Kernel, __: LoginDefaults, program: Program, ___: float) -> LoginEnded:
        found.append(program)
        return LoginEnded(0, "", "", "", ())

    monkeypatch.setattr(gate_module, "run", run)
    monkeypatch.setattr(Accounts, "find", lambda _, __: _account(tmp_path))
    slurm = Slurm(sbatch=Path("/bin/sbatch"), scancel=Path("/bin/scancel"), conf=None)
    accounts = Accounts(DEFAULTS, frozenset(), frozenset())
    grant = Grant(
        id="0" * 32, act=Act.CANCEL, place="gate", subject="s", user="me", issued=0, expires=1
    )
    gate = Gate(Kernel(), accounts, slurm, timeout_s=1.0)
    answer = gate.cancel(grant, CancelQuestion(jobs=("12", "13_1")), ())
    assert answer.outcome is Outcome.DONE
    (program,) = found
    assert not program.with_profile
    assert program.directory == "/"
    assert list(program.argv) == ["/bin/scancel", "12", "13_1"]
