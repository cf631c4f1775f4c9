"""People sign in and out with the real provider, and stay signed in without noticing."""

from __future__ import annotations

import json
import re
import stat
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest

from lab.addresses import OIDC_ISSUER
from lab.laboratory import Lab
from lab.signin import authorization_code, sign_in
from tests.e2e.people import Person
from tests.eventually import eventually

pytestmark = pytest.mark.lab

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def newcomer(lab: Lab) -> Iterator[Person]:
    """Alice, as on her first day."""
    person = Person(lab, "alice")
    person.lattice("logout")
    yield person
    lab.oidc.set_access_token_ttl(600)
    person.lattice("logout")


def _browser(lab: Lab, user: str) -> dict[str, str]:
    """A browser that signs in as this user at whatever address it is given."""
    script = lab.layout.etc / f"browser-{user}"
    script.write_text(
        f'#!/bin/sh\ncd {ROOT} && exec {sys.executable} -m lab.signin --user {user} "$1"\n'
    )
    script.chmod(0o755)
    return {"BROWSER": str(script), "DISPLAY": ":0"}


@pytest.mark.story
@pytest.mark.spec("AUTH-1", "CLI-2")
def test_without_a_token_one_is_told_what_to_do(newcomer: Person) -> None:
    said = newcomer.lattice("status")
    assert said.code == 4
    assert said.out == ""
    assert said.err.strip() == "Not logged in. Run `lattice login` first."


@pytest.mark.story
@pytest.mark.spec("AUTH-1", "AUTH-11")
def test_pkce_then_whoami_then_logout(lab: Lab, newcomer: Person) -> None:
    said = newcomer.lattice("login", "--flow", "pkce", env=_browser(lab, "alice"))
    assert said.code == 0, said
    assert "Logged in as alice" in said.out + said.err
    who = newcomer.lattice("whoami", "-o", "json").json
    assert who["user"] == {"value": "alice", "source": "claim preferred_username"}
    assert newcomer.lattice("status").code == 0
    assert newcomer.lattice("login", "--status").code == 0

    kept = _credential_files(lab, "alice")
    assert kept
    for file in kept:
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file
        assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700, file
    refresh = _refresh_tokens(kept)
    assert newcomer.lattice("logout").code == 0
    assert newcomer.lattice("status").code == 4
    assert _credential_files(lab, "alice") == []
    assert refresh
    assert all(_is_revoked(lab, token) for token in refresh)


def _credential_files(lab: Lab, user: str) -> list[Path]:
    folder = lab.layout.home / user / ".config" / "lattice" / "credentials"
    return [file for file in folder.glob("*") if file.is_file()] if folder.exists() else []


def _refresh_tokens(files: list[Path]) -> list[str]:
    return [file.read_text().strip() for file in files if ".refresh" in file.name]


def _is_revoked(lab: Lab, kept: str) -> bool:
    form = {"grant_type": "refresh_token", "client_id": "lattice", "refresh_token": kept}
    with lab.enter_network(), pytest.raises(urllib.error.HTTPError) as refusal:
        urllib.request.urlopen(f"{OIDC_ISSUER}/token", urlencode(form).encode(), timeout=10)
    return json.loads(refusal.value.read())["error"] == "invalid_grant"


@pytest.mark.spec("AUTH-1")
def test_the_device_flow_from_a_place_without_a_browser(lab: Lab, newcomer: Person) -> None:
    lab.log_in("alice")
    assert newcomer.lattice("status").code == 0


@pytest.mark.spec("AUTH-1")
def test_the_device_flow_refused_by_the_person(lab: Lab, newcomer: Person) -> None:
    command = lab.popen_as(
        "alice", ["lattice", "login", "--flow", "device"], stderr=subprocess.STDOUT
    )
    said = ""
    with command:
        for line in command.stdout or ():
            said += line
            if found := re.search(r"http://\S+user_code=\S+", line):
                with lab.enter_network():
                    sign_in("alice", found[0], refuse=True)
    assert command.returncode == 4, said
    assert "Hint:" in said
    assert newcomer.lattice("status").code == 4


@pytest.mark.spec("AUTH-1")
def test_the_manual_flow_takes_the_pasted_address(lab: Lab, newcomer: Person) -> None:
    command = lab.popen_as(
        "alice",
        ["lattice", "login", "--flow", "manual"],
        stdin=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    said = ""
    with command:
        assert command.stdout is not None
        assert command.stdin is not None
        for line in command.stdout:
            said += line
            if found := re.search(r"http://\S+code_challenge=\S+", line):
                break
        assert found, said
        with lab.enter_network():
            told = authorization_code("alice", found[0])
        command.stdin.write(f"http://127.0.0.1/callback?{urlencode(told)}\n")
        command.stdin.flush()
        said += command.stdout.read()
    assert command.returncode == 0, said
    assert newcomer.lattice("status").code == 0


@pytest.mark.spec("AUTH-1")
def test_an_expired_token_is_renewed_once_by_many_at_the_same_time(
    lab: Lab, newcomer: Person
) -> None:
    """The provider takes a second use of a refresh token for theft and ends the sign-in."""
    lab.oidc.set_access_token_ttl(3)
    lab.log_in("alice")
    time.sleep(4)
    crowd = [
        lab.popen_as("alice", ["lattice", "status", "-o", "json"], stderr=subprocess.STDOUT)
        for _ in range(8)
    ]
    said = [(each.communicate(timeout=60)[0], each.returncode) for each in crowd]
    assert [code for _, code in said] == [0] * 8, said
    time.sleep(4)
    assert newcomer.lattice("status").code == 0


@pytest.mark.spec("AUTH-1")
def test_a_token_file_that_others_can_read_is_refused(lab: Lab, newcomer: Person) -> None:
    lab.log_in("alice")
    for file in _credential_files(lab, "alice"):
        file.chmod(0o644)
    said = newcomer.lattice("status")
    assert said.code == 78
    assert "chmod" in said.err


@pytest.mark.story
@pytest.mark.spec("AUTH-2")
def test_the_provider_changes_its_keys_while_people_work(lab: Lab, alice: Person) -> None:
    assert alice.tries("status").code == 0
    lab.oidc.rotate_keys()
    fresh = Person(lab, "alice").logged_in()
    eventually(lambda: fresh.tries("status"), lambda said: said.code == 0, pause_s=1)
    assert alice.tries("status").code == 0


@pytest.mark.story
@pytest.mark.spec("AUTH-3")
def test_discovery_is_public(lab: Lab) -> None:
    answer = lab.run_as(
        "bob",
        [
            "sh",
            "-c",
            'curl -s --cacert "$LATTICE_CA" "${LATTICE_API_URL%%,*}/api/v1/auth/discovery"',
        ],
    )
    found = json.loads(answer.stdout)
    # The cluster's id, where people may sign in by MUNGE or by a Slurm token.
    for kind in ("munge", "slurm"):
        assert found.pop(kind, "lab").startswith("lab")
    assert found == {
        "idp_url": "http://127.0.0.1:24000",
        "client_id": "lattice",
        "issuer": "http://127.0.0.1:24000",
    }


@pytest.mark.story
@pytest.mark.spec("AUTH-5")
@pytest.mark.threat("id-token", "reading-token")
def test_an_id_token_opens_nothing_and_a_reading_token_does_not_act(quiet_lab: Lab) -> None:
    """Attack 38."""
    alice = Person(quiet_lab, "alice")
    answer = quiet_lab.oidc.token("alice", "openid")
    for words in (("status",), ("submit", "--", "true")):
        said = alice.lattice(*words, env={"LATTICE_TOKEN": str(answer["id_token"])})
        assert said.code == 4, said
    reader = alice.logged_in("allocations:read")
    assert reader.tries("status").code == 0
    said = reader.tries("submit", "--", "true")
    assert said.code == 77
    assert "it lacks allocations:write" in said.err
