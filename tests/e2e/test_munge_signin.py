"""People sign in as their Unix user on hosts of the cluster, without an identity provider."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.laboratory import Lab
from lab.slurm_config import SlurmFiles
from lab.slurm_root import default_authentication
from tests.e2e.people import Person
from tests.eventually import eventually

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(
        default_authentication() != "munge", reason="this lab's Slurm runs without MUNGE"
    ),
]


@pytest.fixture
def newcomer(lab: Lab) -> Iterator[Person]:
    """Alice, as on her first day."""
    person = Person(lab, "alice")
    person.lattice("logout")
    yield person
    person.lattice("logout")


def _stored(lab: Lab) -> Path:
    folder = lab.layout.home / "alice" / ".config" / "lattice" / "credentials"
    (file,) = (each for each in folder.glob("*.json") if "same_as" not in each.read_text())
    return file


def _credential(lab: Lab, text: str) -> str:
    socket = SlurmFiles(lab.layout.state).munge_socket
    made = lab.run_as("alice", ["munge", f"--socket={socket}", "--string", text], check=True)
    return made.stdout.strip()


def _send(lab: Lab, credential: str) -> tuple[int, str]:
    body = json.dumps({"credential": credential})
    command = (
        'curl -s -w "\\n%{http_code}" --cacert "$LATTICE_CA" -d "$1" '
        '-H "content-type: application/json" "${LATTICE_API_URL%%,*}/v1/auth/munge"'
    )
    done = lab.run_as("alice", ["sh", "-c", command, "sh", body])
    answer, _, status = done.stdout.rpartition("\n")
    return int(status), answer


@pytest.mark.story
@pytest.mark.spec("TRY-4")
def test_a_credential_is_for_one_sign_in_at_this_cluster(lab: Lab, newcomer: Person) -> None:
    found = newcomer.lattice("login", "--flow", "munge")
    assert found.code == 0, found
    cluster = json.loads(_stored(lab).read_text())["client_id"]
    good = _credential(lab, f"lattice sign-in 1 {cluster} 10.77.0.1")
    assert _send(lab, good)[0] == 200
    refused = [
        _send(lab, each)
        for each in (
            good,
            _credential(lab, "what Slurm would send"),
            _credential(lab, f"lattice sign-in 1 {cluster} evil.example"),
            _credential(lab, "lattice sign-in 1 another-cluster 10.77.0.1"),
            "MUNGE:AwQFAAA=:",
            "not munge",
        )
    ]
    assert {status for status, _ in refused} == {401}
    answers = [json.loads(body)["error"] for _, body in refused]
    assert {each["message"] for each in answers} == {"The token was not accepted."}
    assert len({each["hint"] for each in answers}) == 1


@pytest.mark.story
@pytest.mark.spec("TRY-4", "AUTH-1")
def test_login_by_munge_as_the_own_user_renewed_in_silence(lab: Lab, newcomer: Person) -> None:
    assert newcomer.lattice("status").code == 4
    found = newcomer.lattice("login", "--flow", "munge")
    assert found.code == 0, found
    assert "Logged in as alice" in found.out
    who = newcomer.lattice("whoami", "-o", "json").json
    assert who["user"]["value"] == "alice"
    assert who["role"]["value"] == "User"
    job = lab.jobs.submit("alice", "--wrap", "sleep 60")
    eventually(lambda: newcomer.lattice("status").out, lambda out: str(job) in out)
    # A sign-in that has ended is renewed by another credential, and nobody is asked.
    file = _stored(lab)
    before = json.loads(file.read_text())
    owner = file.stat()
    file.write_text(json.dumps(before | {"expires_at": 1.0}))
    os.chown(file, owner.st_uid, owner.st_gid)
    again = newcomer.lattice("status")
    assert (again.code, again.err) == (0, ""), again
    assert json.loads(file.read_text())["access_token"] != before["access_token"]
    lab.jobs.cancel(job)
    assert "tokens deleted" in newcomer.lattice("logout").err
    assert newcomer.lattice("status").code == 4
