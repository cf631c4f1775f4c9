"""No secret of sensitive work ends up where somebody could read it, whatever was done with it.

Searched for are tokens, the data key and the keys of the site: in each file of the lab, in
arguments and environments of its processes, and in what a process leaves that crashes.
"""

from __future__ import annotations

import base64
import re
import resource
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.laboratory import Lab
from lab.process import Process
from lab.sensitive import FIRST_SITE_KEY, site_key, site_keys_file
from lab.signed_image import signed_image
from lab.users import SERVER_USER
from tests.e2e.marked import files_with, memories_with
from tests.e2e.people import Person
from tests.e2e.put_right import administrator
from tests.e2e.sensitive_jobs import (
    claimed,
    data_key,
    key_record,
    recorded_terminal,
    sensitive_job,
)
from tests.eventually import eventually

pytestmark = [pytest.mark.lab, pytest.mark.long, pytest.mark.timeout(600)]

_SERVICES = (b"lattice-server", b"lattice-agent", b"lattice.helper")
_TOKEN = re.compile(rb"eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}")


def _spellings(secret: bytes) -> list[bytes]:
    """A key as it is, in hex and in Base64."""
    return [secret, secret.hex().encode(), base64.b64encode(secret)]


def _arguments() -> bytes:
    """Of all processes of this machine, which everybody can read."""
    return b"\n".join(_of_processes("cmdline", b""))


def _environments(lab: Lab) -> bytes:
    """Of the services; people have their own tokens there."""
    found = [each for name in _SERVICES for each in _of_processes("environ", name)]
    assert any(lab.name.encode() in each for each in found)
    return b"\n".join(found)


def _of_processes(file: str, name: bytes) -> Iterator[bytes]:
    for each in Path("/proc").iterdir():
        if not each.name.isdigit():
            continue
        try:
            if name in (each / "cmdline").read_bytes():
                yield (each / file).read_bytes()
        except OSError:
            continue


@pytest.fixture
def cores_are_written(sensitive_lab: Lab) -> Iterator[None]:
    """A server and an agent are started where nobody forbids cores, as a careless unit would."""
    before = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (before[1], before[1]))
    _restart(sensitive_lab)
    yield
    resource.setrlimit(resource.RLIMIT_CORE, before)
    _restart(sensitive_lab)


def _restart(lab: Lab) -> None:
    for process in (lab.servers[0].process, lab.node("n1").agent.process):
        process.restart()


def _cores(lab: Lab) -> list[Path]:
    return [each for each in (lab.layout.home / SERVER_USER).iterdir() if "core" in each.name]


def _another_leaves_a_core(lab: Lab) -> None:
    """The control: this machine writes cores of the servers' account there."""
    words = ("sh", "-c", "kill -ABRT $$")
    lab.control.room.run(words, user=SERVER_USER, cwd=f"/home/{SERVER_USER}", check=False)
    left = _cores(lab)
    assert left
    for each in left:
        each.unlink()


def _crash(process: Process) -> None:
    """As a bug would."""
    process.signal(signal.SIGABRT)
    eventually(lambda: not process.alive)


@pytest.mark.spec("AUTH-1", "LOG-8")
@pytest.mark.threat("sensitive", "sensitive-memory")
@pytest.mark.usefixtures("cores_are_written")
def test_no_secret_of_sensitive_work_in_any_artefact(sensitive_lab: Lab) -> None:
    lab, olga = sensitive_lab, administrator(sensitive_lab)
    with claimed(lab) as alice, signed_image(lab, "n1"):
        job = sensitive_job(lab, alice, "echo begins; sleep 600")
        eventually(lambda: "begins" in alice.tries("logs", str(job)).out)
        with recorded_terminal(lab, alice, job) as terminal:
            terminal.type("echo seen-$((40+2))\n")
            terminal.shows("seen-42")
            shown = _arguments() + _environments(lab)
            terminal.type("exit\n")
            terminal.message("Exit")
        _use(alice, job, terminal.session)
        bundle = lab.layout.home / "alice" / f"sensitive-{job}.bundle"
        assert olga.tries("audit", "export", str(bundle)).code == 0
        ref, _ = key_record(lab, job)
        _, key = data_key(lab, ref)
        assert memories_with(lab, key.secret, ("n1",)), "the control: it is in memory"

        _another_leaves_a_core(lab)
        for process in (lab.servers[0].process, lab.node("n1").agent.process):
            _crash(process)
            process.up()
        assert _cores(lab) == []
        site = bytes.fromhex(site_key(FIRST_SITE_KEY))
        kept = site_keys_file(lab)
        assert files_with(lab, [site.hex().encode()]) == [kept.name], "the control: in its file"
        wanted = [*_spellings(key.secret), *_spellings(site)]
        assert files_with(lab, wanted, except_for=[kept.name]) == []
        assert not any(each in shown for each in wanted)
        assert not _TOKEN.search(shown)
        assert _with_tokens(lab) == []


def _use(alice: Person, job: int, session: str) -> None:
    """Each thing that a person does with it, and refused ones."""
    number = str(job)
    for words in (
        ("logs", number, "--grep", "begins", "-v"),
        ("top", number, "--once"),
        ("diag", number),
        ("share", number, "--with", "bob", "--for", "1d"),
        ("sessions", "--all"),
        ("replay", session, "--speed", "1000", "-v"),
        ("replay", session, "--search", "seen"),
        ("audit", "query", "--allocation", number),
    ):
        alice.tries(*words)


def _with_tokens(lab: Lab) -> list[Path]:
    kept = lab.layout.home / "alice" / ".config" / "lattice" / "credentials"
    found = []
    for file in sorted(lab.layout.state.rglob("*")):
        try:
            if file.is_symlink() or not file.is_file() or kept in file.parents:
                continue
            if _TOKEN.search(file.read_bytes()[: 16 << 20]):
                found.append(file)
        except OSError:
            continue
    return found
