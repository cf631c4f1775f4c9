"""What the gate makes of a script and of what a program says."""

from __future__ import annotations

import fcntl
import hashlib
import os

import pytest

from lattice.adapters.helper.gate import sealed
from lattice.domain.privileged import Outcome
from lattice.domain.submission import LARGEST_SCRIPT_BYTES
from lattice.helper.gate import _failed, _submitted, script_fault
from lattice.helper.login import LoginEnded

SCRIPT = b"#!/bin/sh\n"
DIGEST = hashlib.sha256(SCRIPT).hexdigest()


def test_a_sealed_script_is_taken_and_read_from_its_start() -> None:
    memory = sealed(SCRIPT)
    os.lseek(memory, 3, os.SEEK_SET)
    assert script_fault(memory, DIGEST) == ""
    assert os.read(memory, 100) == SCRIPT
    os.close(memory)


@pytest.mark.threat("gate-grant")
def test_what_could_still_change_is_refused() -> None:
    memory = os.memfd_create("x", os.MFD_ALLOW_SEALING)
    os.write(memory, SCRIPT)
    fcntl.fcntl(memory, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
    assert script_fault(memory, DIGEST) == "the script is not sealed"
    os.close(memory)


@pytest.mark.threat("gate-grant")
def test_another_or_too_large_a_script_is_refused() -> None:
    memory = sealed(SCRIPT + b"x")
    assert "granted" in script_fault(memory, DIGEST)
    os.close(memory)
    memory = sealed(b"x" * (LARGEST_SCRIPT_BYTES + 1))
    assert "size" in script_fault(memory, DIGEST)
    os.close(memory)


@pytest.mark.parametrize(
    ("out", "code", "outcome"),
    [
        ("12\n", 0, Outcome.DONE),
        ("12;other\n", 0, Outcome.DONE),
        ("12\n", 1, Outcome.FAILED),
        ("", 0, Outcome.FAILED),
        ("noise\n12\n", 0, Outcome.FAILED),
        ("12 13\n", 0, Outcome.FAILED),
        ("0\n", 0, Outcome.FAILED),
        ("12;$(x)\n", 0, Outcome.FAILED),
    ],
)
def test_only_an_id_is_an_id(out: str, code: int, outcome: Outcome) -> None:
    answer = _submitted(LoginEnded(code, out, "", "", ()))
    assert answer.outcome is outcome
    assert answer.output == (out.strip() if outcome is Outcome.DONE else "")


def test_what_sbatch_adds_to_a_success_is_kept() -> None:
    answer = _submitted(LoginEnded(0, "12\n", "sbatch: your quota is low\n", "", ("a",)))
    assert answer.notes == ("a", "sbatch: your quota is low")


def test_silence_is_explained() -> None:
    assert "profile" in _failed(LoginEnded(3, "", "", "", ()), "sbatch").message
    assert (
        "no such module" in _failed(LoginEnded(3, "", "", "no such module\n", ()), "sbatch").message
    )
