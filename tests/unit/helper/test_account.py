"""Which accounts the gate acts for, from the machine's own files."""

from __future__ import annotations

import pwd
from pathlib import Path

import pytest

from lattice.helper.account import (
    AccountRefused,
    Accounts,
    LoginDefaults,
    login_shell,
    slurm_users,
)


def person(**change: object) -> pwd.struct_passwd:
    facts = {
        "name": "ann", "password": "x", "uid": 3001, "gid": 3001, "gecos": "", "home": "/home/ann",
        "shell": "/bin/bash",
    } | change  # fmt: skip
    return pwd.struct_passwd(tuple(facts.values()))


@pytest.fixture
def accounts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Accounts:
    shells = tmp_path / "shells"
    shells.write_text("# comment\n/bin/bash\n/bin/tcsh\n/usr/sbin/nologin\n/bin/rbash\n")
    return Accounts(LoginDefaults(), frozenset({"slurm", "lattice"}), frozenset({4004}), shells)


def _find(accounts: Accounts, monkeypatch: pytest.MonkeyPatch, found: pwd.struct_passwd) -> None:
    monkeypatch.setattr(pwd, "getpwnam", lambda _: found)
    accounts.find("ann")


@pytest.mark.spec("ALLOC-3")
def test_a_person_is_found(accounts: Accounts, monkeypatch: pytest.MonkeyPatch) -> None:
    _find(accounts, monkeypatch, person())


@pytest.mark.spec("ALLOC-3")
@pytest.mark.threat("gate")
@pytest.mark.parametrize(
    "change",
    [
        {"uid": 0},
        {"gid": 0},
        {"uid": 999},
        {"uid": 65534},
        {"uid": 4004},
        {"name": "ANN"},
        {"shell": "/usr/sbin/nologin"},
        {"shell": "/bin/false"},
        {"shell": "/bin/rbash"},
        {"shell": "/usr/bin/git-shell"},
        {"shell": "/home/ann/myshell"},
    ],
)
def test_what_is_no_person_is_refused(
    accounts: Accounts, monkeypatch: pytest.MonkeyPatch, change: dict[str, object]
) -> None:
    with pytest.raises(AccountRefused):
        _find(accounts, monkeypatch, person(**change))


@pytest.mark.spec("ALLOC-3")
@pytest.mark.parametrize("name", ["", "-x", "a b", "a\0b", "1000", "x" * 80, "a/b", "root"])
def test_names_that_are_none(accounts: Accounts, name: str) -> None:
    with pytest.raises(AccountRefused):
        accounts.find(name)


@pytest.mark.spec("ALLOC-3")
@pytest.mark.threat("gate")
def test_a_name_is_refused_whatever_its_number(
    accounts: Accounts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pwd, "getpwnam", lambda _: person(name="slurm"))
    with pytest.raises(AccountRefused, match="belongs to Slurm"):
        accounts.find("slurm")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", LoginDefaults()),
        ("UID_MIN 5000\nUMASK 077\n", LoginDefaults(5000, 0o077)),
        ("UID_MIN 100\n", LoginDefaults(1000)),
        ("UID_MIN all\nUMASK 9\n", LoginDefaults()),
        ("#UID_MIN 5000\nENV_PATH PATH=/opt/bin:/bin\n", LoginDefaults(path="/opt/bin:/bin")),
    ],
)
def test_login_defs(tmp_path: Path, text: str, expected: LoginDefaults) -> None:
    file = tmp_path / "login.defs"
    file.write_text(text)
    assert LoginDefaults.read(file) == expected
    assert LoginDefaults.read(tmp_path / "absent") == LoginDefaults()


@pytest.mark.spec("ALLOC-3")
def test_the_users_of_slurm(tmp_path: Path) -> None:
    file = tmp_path / "slurm.conf"
    file.write_text("ClusterName=x\nSlurmUser = hpc(64030)\n#SlurmdUser=other\n")
    assert slurm_users(file) == {"root", "slurm", "hpc"}
    assert slurm_users(tmp_path / "absent") == {"root", "slurm"}


def test_a_shell_the_gate_can_not_use_is_said() -> None:
    assert login_shell(person()) == ("/bin/bash", "")
    assert login_shell(person(shell="")) == ("/bin/sh", "")
    shell, word = login_shell(person(shell="/bin/tcsh"))
    assert shell == "/bin/sh"
    assert "/bin/tcsh" in word
