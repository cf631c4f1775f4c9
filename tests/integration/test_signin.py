"""Signing in, renewing and signing out as a person does, with a real OpenID provider.

The program runs as its own process; the person's browser is a script that walks the provider's
pages. Only the Lattice server behind it is a small stand-in: it says where to sign in, and who
the bearer of a token is.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import threading
import time
from base64 import urlsafe_b64decode
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import Request as UrlRequest
from urllib.request import urlopen

import pytest

from lab.signin import SignInError, authorization_code, sign_in
from tests.eventually import eventually
from tests.fakes import answers
from tests.fakes.web import Answer, Request, Web, web

ROOT = Path(__file__).resolve().parents[2]
PROVIDER = ROOT / "lab/oidc"

pytestmark = pytest.mark.skipif(
    shutil.which("node") is None or not (PROVIDER / "node_modules").is_dir(),
    reason="needs node and the lab's provider (npm ci in lab/oidc)",
)


class Provider:
    def __init__(self, port: int) -> None:
        self.issuer = f"http://127.0.0.1:{port}"

    def post(self, path: str) -> None:
        with urlopen(UrlRequest(self.issuer + path, data=b"", method="POST"), timeout=60):
            pass


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        ["node", "provider.mjs", str(port)],
        cwd=PROVIDER,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    try:
        assert "identity provider at" in process.stdout.readline()
        yield Provider(port)
    finally:
        process.terminate()
        process.wait(10)
        process.stdout.close()


def claims(token: str) -> dict[str, Any]:
    part = token.split(".")[1]
    found: dict[str, Any] = json.loads(urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    return found


@pytest.fixture
def server(provider: Provider) -> Iterator[Web]:
    refused: set[str] = set()

    def whoami(request: Request) -> Answer:
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        if not token or token in refused:
            return Answer(answers.refusal("login_required", "Your token is not valid."), 401)
        who = claims(token)
        user = {"value": who["preferred_username"], "source": "claim preferred_username"}
        return Answer(answers.IDENTITY | {"sub": who["sub"], "user": user, "expires": None})

    discovery = {"idp_url": provider.issuer, "client_id": "lattice", "issuer": provider.issuer}
    routes: dict[str, Any] = {"/api/v1/auth/discovery": discovery, "/v1/auth/whoami": whoami}
    with web(routes) as running:
        running.refused = refused  # type: ignore[attr-defined]
        yield running


class Person:
    """A home, an environment, and the program to run in it."""

    def __init__(self, home: Path, server: Web, *, browser: str = "") -> None:
        self.home = home
        self.started: list[subprocess.Popen[str]] = []
        self.environment = {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HOME": str(home),
            "LATTICE_API_URL": server.url,
            "BROWSER": browser,
        }

    def start(self, *words: str, **variables: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            ["lattice", *words],
            env=self.environment | variables,
            cwd=self.home,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        return process

    def close(self) -> None:
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.communicate()

    def run(self, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        process = self.start(*words, **variables)
        out, err = process.communicate(timeout=60)
        return subprocess.CompletedProcess(words, process.returncode, out, err)

    @property
    def files(self) -> list[Path]:
        folder = self.home / ".config/lattice/credentials"
        return sorted(folder.iterdir()) if folder.is_dir() else []

    def kept(self, suffix: str) -> dict[str, Any]:
        (path,) = [path for path in self.files if path.suffix == suffix]
        found: dict[str, Any] = json.loads(path.read_text())
        return found

    def expire(self) -> None:
        (path,) = [path for path in self.files if path.suffix == ".json"]
        path.write_text(json.dumps(self.kept(".json") | {"expires_at": time.time() - 1}))


@pytest.fixture
def browser(tmp_path: Path) -> str:
    script = tmp_path / "browser"
    script.write_text(
        f'#!/bin/sh\ncd {ROOT} && exec {sys.executable} -m lab.signin --user alice "$1"\n'
    )
    script.chmod(0o755)
    return str(script)


@pytest.fixture
def person(tmp_path: Path, server: Web, browser: str) -> Iterator[Person]:
    home = tmp_path / "home"
    home.mkdir()
    made = Person(home, server, browser=browser)
    yield made
    made.close()


@pytest.mark.spec("AUTH-1")
def test_browser_flow_signs_in_and_keeps_tokens_for_the_owner_alone(person: Person) -> None:
    done = person.run("login")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(
        "Logged in as alice (role User, tenant physics), token valid until "
    )
    assert [path.suffix for path in person.files] == [".json", ".refresh"]
    for path in person.files:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(person.files[0].parent.stat().st_mode) == 0o700
    assert claims(person.kept(".json")["access_token"])["sub"] == "alice"


@pytest.mark.spec("AUTH-1")
def test_device_flow_is_chosen_over_ssh_and_waits_for_the_person(person: Person) -> None:
    process = person.start("login", BROWSER="", SSH_CONNECTION="10.0.0.1 5 10.0.0.2 22")
    assert process.stderr is not None
    told = ""
    while "waiting" not in told:
        line = process.stderr.readline()
        assert line, told
        told += line
    page = next(word for word in told.split() if "user_code=" in word)
    assert sign_in("bob", page).status == 200
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, told + err
    assert out.startswith("Logged in as bob ")


@pytest.mark.spec("AUTH-1")
def test_device_flow_refused_by_the_person(person: Person) -> None:
    process = person.start("login", "--flow", "device")
    assert process.stderr is not None
    told = ""
    while "waiting" not in told:
        told += process.stderr.readline()
    page = next(word for word in told.split() if "user_code=" in word)
    with suppress(SignInError):  # the provider's page goes on asking for a code
        sign_in("bob", page, refuse=True)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 4
    assert "refused" in err
    assert not person.files


@pytest.mark.spec("AUTH-1")
@pytest.mark.parametrize("form", ["whole address", "code alone"])
def test_manual_flow_reads_back_what_the_person_brings(person: Person, form: str) -> None:
    process = person.start("login", "--flow", "manual")
    assert process.stderr is not None
    url = ""
    while not url:
        line = process.stderr.readline().strip()
        url = line if line.startswith("http") else ""
    told = authorization_code("carol", url)
    back = told["code"]
    if form == "whole address":
        query = "&".join(f"{name}={value}" for name, value in told.items())
        back = f"http://127.0.0.1:50000/callback?{query}"
    out, err = process.communicate(back + "\n", timeout=60)
    assert process.returncode == 0, err
    assert out.startswith("Logged in as carol ")


@pytest.mark.spec("AUTH-1")
def test_manual_flow_refuses_an_answer_to_another_attempt(person: Person) -> None:
    process = person.start("login", "--flow", "manual")
    out, err = process.communicate("http://127.0.0.1:1/callback?code=x&state=other\n", timeout=60)
    assert process.returncode == 2
    assert "another attempt" in err
    assert not out
    assert not person.files


@pytest.mark.spec("AUTH-1")
def test_browser_refusal_is_said(person: Person, tmp_path: Path) -> None:
    script = tmp_path / "refuse"
    script.write_text(
        f'#!/bin/sh\ncd {ROOT} && exec {sys.executable} -m lab.signin --refuse --user alice "$1"\n'
    )
    script.chmod(0o755)
    done = person.run("login", BROWSER=str(script))
    assert done.returncode == 4
    assert "Signing in was refused." in done.stderr


@pytest.mark.spec("AUTH-1")
def test_expired_token_is_renewed_in_silence(person: Person) -> None:
    assert person.run("login").returncode == 0
    first, first_refresh = person.kept(".json"), person.kept(".refresh")
    person.expire()
    done = person.run("whoami")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert person.kept(".json")["access_token"] != first["access_token"]
    assert person.kept(".refresh") != first_refresh, "the provider rotates refresh tokens"


@pytest.mark.spec("AUTH-1")
def test_token_the_server_refuses_is_renewed_once(person: Person, server: Web) -> None:
    assert person.run("login").returncode == 0
    server.refused.add(person.kept(".json")["access_token"])  # type: ignore[attr-defined]
    assert person.run("whoami").returncode == 0


@pytest.mark.spec("AUTH-1")
def test_many_at_once_renew_only_once(person: Person) -> None:
    """The provider ends a grant whose refresh token comes twice, so one slip fails them all."""
    assert person.run("login").returncode == 0
    for _ in range(3):
        person.expire()
        started = [person.start("whoami") for _ in range(8)]
        results = [(*process.communicate(timeout=60), process.returncode) for process in started]
        assert [code for _, _, code in results] == [0] * 8, [err for _, err, _ in results]
    assert [path.suffix for path in person.files] == [".json", ".refresh"]


@pytest.mark.spec("AUTH-1")
def test_logout_revokes_and_deletes(person: Person, provider: Provider) -> None:
    assert person.run("login").returncode == 0
    refresh = person.kept(".refresh")["refresh_token"]
    done = person.run("logout")
    assert (done.returncode, done.stderr) == (0, "Logged out: tokens revoked and deleted.\n")
    assert not person.files
    form = f"grant_type=refresh_token&client_id=lattice&refresh_token={refresh}".encode()
    with pytest.raises(OSError, match="400"):
        urlopen(f"{provider.issuer}/token", data=form, timeout=60)
    assert person.run("login", "--status").returncode == 4


@pytest.mark.spec("AUTH-1")
def test_logout_says_when_the_provider_is_away(person: Person, server: Web) -> None:
    assert person.run("login").returncode == 0
    gone = "http://127.0.0.1:9"
    server.routes["/api/v1/auth/discovery"] = {
        "idp_url": gone,
        "client_id": "lattice",
        "issuer": gone,
    }
    done = person.run("logout")
    assert done.returncode == 0
    assert "not revoked: Can't reach the identity provider" in done.stderr
    assert not person.files


@pytest.mark.spec("AUTH-1")
def test_ended_session_asks_to_log_in(person: Person) -> None:
    assert person.run("login").returncode == 0
    (path,) = [path for path in person.files if path.suffix == ".refresh"]
    path.write_text(json.dumps({"refresh_token": "worthless"}))
    person.expire()
    done = person.run("whoami")
    assert done.returncode == 4
    assert done.stderr == "Your sign-in has ended. Run `lattice login` again.\n"


@pytest.mark.spec("AUTH-1", "CLI-2")
def test_status_of_nobody(person: Person) -> None:
    done = person.run("login", "--status")
    assert (done.returncode, done.stdout) == (4, "")
    assert done.stderr == "Not logged in. Run `lattice login` first.\n"


@pytest.mark.spec("AUTH-1")
def test_tokens_stand_in_no_argument_list(person: Person, tmp_path: Path) -> None:
    """Attack 26: what `ps` shows while signing in holds no code, token or verifier."""
    seen = tmp_path / "seen"
    script = tmp_path / "look"
    script.write_text(
        f"#!/bin/sh\ncat /proc/[0-9]*/cmdline | tr '\\0' ' ' > {seen}\n"
        f'cd {ROOT} && exec {sys.executable} -m lab.signin --user alice "$1"\n'
    )
    script.chmod(0o755)
    assert person.run("login", BROWSER=str(script)).returncode == 0
    shown = seen.read_text(errors="replace")
    for secret in (person.kept(".json")["access_token"], person.kept(".refresh")["refresh_token"]):
        assert secret not in shown
    assert "code_challenge=" in shown, "the page's address is there"
    assert "code_verifier" not in shown


@pytest.mark.spec("AUTH-1")
def test_loopback_answers_nothing_but_its_own_callback(person: Person, tmp_path: Path) -> None:
    waiting = tmp_path / "waiting"
    script = tmp_path / "slow"
    script.write_text(f'#!/bin/sh\nprintf %s "$1" > {waiting}\n')
    script.chmod(0o755)
    process = person.start("login", BROWSER=str(script))
    url = eventually(lambda: waiting.exists() and waiting.read_text())
    assert url
    from urllib.parse import parse_qs

    query = {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
    back = query["redirect_uri"]
    for path, status in (("/", 404), ("/callback", 400), ("/callback?code=x&state=forged", 400)):
        with pytest.raises(OSError, match=str(status)):
            urlopen(back.removesuffix("/callback") + path, timeout=60)
    result: list[int] = []
    thread = threading.Thread(target=lambda: result.append(sign_in("alice", url).status))
    thread.start()
    thread.join(60)
    assert process.wait(60) == 0
    assert result == [200]
