"""No token ends up where somebody else could read it: logs, arguments, addresses, state."""

from __future__ import annotations

import re
import subprocess
import time
from pathlib import Path

import pytest

from lab.laboratory import Lab
from tests.e2e.people import Person

pytestmark = pytest.mark.lab

_TOKEN = re.compile(rb"eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}")


@pytest.mark.spec("AUTH-1")
def test_no_token_in_any_artefact(lab: Lab, alice: Person) -> None:
    lab.log_in("alice")
    Person(lab, "alice").lattice("status", "-v")
    alice.tries("whoami", "-v")
    forged = f"{alice.bearer['LATTICE_TOKEN'][:-4]}AAAA"
    assert Person(lab, "alice").lattice("status", env={"LATTICE_TOKEN": forged}).code == 4

    kept = lab.layout.home / "alice" / ".config" / "lattice" / "credentials"
    places = [lab.layout.state, lab.layout.home / "alice"]
    found = [
        file
        for place in places
        for file in place.rglob("*")
        if file.is_file()
        and not file.is_symlink()
        and kept not in file.parents
        and _TOKEN.search(_bytes(file))
    ]
    # The accounting database keeps nothing of Lattice's; slurm's own key files are not tokens.
    assert found == []
    Person(lab, "alice").lattice("logout")


def _bytes(file: Path) -> bytes:
    try:
        return file.read_bytes()[: 16 << 20]
    except OSError:
        return b""


@pytest.mark.spec("AUTH-1")
def test_no_token_in_the_arguments_of_any_process(lab: Lab, alice: Person) -> None:
    with lab.popen_as("alice", ["lattice", "status", "--watch"], env=alice.bearer) as command:
        time.sleep(2)
        shown = subprocess.run(
            ["ps", "-eo", "args", "--no-headers", "-ww"], capture_output=True, check=True
        ).stdout
        command.terminate()
    assert b"lattice status --watch" in shown
    assert not _TOKEN.search(shown)
