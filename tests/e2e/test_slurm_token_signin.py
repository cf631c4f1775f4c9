"""People sign in by a Slurm token, without MUNGE and without an identity provider."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from lab.laboratory import Lab
from lab.slurm_config import SlurmFiles
from lattice.adapters.oidc.strict import base64url, json_object
from tests.e2e.people import Person
from tests.eventually import eventually
from tests.fakes.judging_slurmrestd import slurm_token

pytestmark = [pytest.mark.lab, pytest.mark.story]


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


def _send(lab: Lab, token: str) -> tuple[int, str]:
    command = (
        'curl -s -w "\\n%{http_code}" --cacert "$LATTICE_CA" -d @- '
        '-H "content-type: application/json" "${LATTICE_API_URL%%,*}/v1/auth/slurm"'
    )
    done = lab.run_as("alice", ["sh", "-c", command], input=json.dumps({"token": token}))
    answer, _, status = done.stdout.rpartition("\n")
    return int(status), answer


@pytest.mark.spec("TRY-4", "AUTH-1")
def test_login_by_a_slurm_token_that_is_nowhere_afterwards(lab: Lab, newcomer: Person) -> None:
    assert newcomer.lattice("status").code == 4
    found = newcomer.lattice("login", "--flow", "slurm")
    assert found.code == 0, found
    assert "Logged in as alice (role User" in found.out
    who = newcomer.lattice("whoami", "-o", "json").json
    assert who["user"] == {"value": "alice", "source": "signed in by a Slurm token"}
    assert (who["sub"], who["role"]["value"]) == ("slurm:alice", "User")
    job = lab.jobs.submit("alice", "--wrap", "sleep 60")
    eventually(lambda: newcomer.lattice("status").out, lambda out: str(job) in out)
    # A sign-in that has ended is renewed by another token, and nobody is asked.
    file = _stored(lab)
    before = json.loads(file.read_text())
    owner = file.stat()
    file.write_text(json.dumps(before | {"expires_at": 1.0}))
    os.chown(file, owner.st_uid, owner.st_gid)
    again = newcomer.lattice("status")
    assert (again.code, again.err) == (0, ""), again
    assert json.loads(file.read_text())["access_token"] != before["access_token"]
    lab.jobs.cancel(job)
    # A token of one's own, of a shorter life: the sign-in ends with it, and it is not kept.
    own = lab.slurm.token("alice", lifespan_s=900)
    end = json_object(base64url(own.split(".")[1].encode()))["exp"]
    taken = newcomer.lattice("login", "--flow", "slurm", env={"SLURM_JWT": own})
    assert taken.code == 0, taken
    kept = _stored(lab).read_text()
    expires = newcomer.lattice("whoami", "-o", "json").json["expires"]
    assert datetime.fromisoformat(expires).timestamp() == end
    logs = "".join(each.process.log_file.read_text(errors="replace") for each in lab.servers)
    assert "signed in by a slurm token" in logs
    for part in own.split("."):
        assert part not in kept
    assert own.rpartition(".")[2] not in logs
    assert "tokens deleted" in newcomer.lattice("logout").err
    assert newcomer.lattice("status").code == 4


@pytest.mark.spec("TRY-4")
@pytest.mark.threat("slurm-token")
def test_what_slurm_does_not_accept_signs_nobody_in(lab: Lab) -> None:
    key = SlurmFiles(lab.layout.state).jwt_key.read_bytes()
    now = int(time.time())
    alice = {"exp": now + 600, "iat": now, "sun": "alice"}
    good = lab.slurm.token("alice")
    status, answer = _send(lab, good)
    assert status == 200
    assert 0 < json.loads(answer)["lifetime_s"] <= 3600
    refused = [
        _send(lab, each)
        for each in (
            slurm_token(b"the key of another cluster.", alice),
            slurm_token(key, alice, "none"),
            slurm_token(key, alice | {"exp": now - 1}),
            lab.slurm.token("root"),
            lab.slurm.token("slurm"),
            good[:-1],
            "",
        )
    ]
    assert {status for status, _ in refused} == {401}
    answers = [json.loads(body)["error"] for _, body in refused]
    assert {each["message"] for each in answers} == {"The token was not accepted."}
    assert len({each["hint"] for each in answers}) == 1
