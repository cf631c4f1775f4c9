"""What is made of `scontrol token`; the real one is met in the stories."""

from __future__ import annotations

from pathlib import Path

import pytest

from lattice.adapters.scontrol_token import own_token
from lattice.base.errors import Unavailable


def scontrol(folder: Path, script: str) -> dict[str, str]:
    file = folder / "scontrol"
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    return {"PATH": str(folder), "SLURM_JWT": "old"}


@pytest.fixture(autouse=True)
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))


@pytest.mark.spec("TRY-4")
def test_the_token_is_asked_for_as_the_caller(tmp_path: Path) -> None:
    # SLURM_JWT would be used in place of the caller's uid.
    script = 'echo "$@${SLURM_JWT}" >"$0.asked"; echo SLURM_JWT=a.b=.c'
    assert own_token(scontrol(tmp_path, script)) == "a.b=.c"
    assert (tmp_path / "scontrol.asked").read_text() == "token lifespan=1800\n"


@pytest.mark.spec("TRY-4")
@pytest.mark.parametrize(
    "script",
    [
        "echo 'scontrol: error: token creation disabled' >&2; exit 1",
        "echo SLURM_JWT=a.b.c; echo 'token creation disabled' >&2; exit 1",
        "echo SLURM_JWT=; echo 'token creation disabled' >&2",
        "echo something; echo 'token creation disabled' >&2",
    ],
)
def test_slurm_gives_none(tmp_path: Path, script: str) -> None:
    with pytest.raises(Unavailable, match="Slurm gave no token") as refusal:
        own_token(scontrol(tmp_path, script))
    assert "token creation disabled" in str(refusal.value.hint)
    assert "a.b.c" not in str(refusal.value.hint)


@pytest.mark.spec("TRY-4")
def test_a_machine_without_scontrol(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="needs scontrol on this machine, or SLURM_JWT"):
        own_token({"PATH": str(tmp_path)})
