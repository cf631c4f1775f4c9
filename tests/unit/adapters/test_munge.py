"""What is made of the answers of `munge` and `unmunge`; the real ones are met in the stories."""

from __future__ import annotations

import asyncio
import os
import pwd
import subprocess
import threading
from pathlib import Path

import pytest

from lattice.adapters.munge import BadCredential, MungeReader, encoded
from lattice.base.errors import RateLimited, Unavailable

OWN = pwd.getpwuid(os.getuid()).pw_name
CREDENTIAL = "MUNGE:AwQFAABq+/=:"
DECODED = """STATUS:           {status}
ENCODE_HOST:      n1 (10.0.0.1)
UID:              someone ({uid})
GID:              users (100)
LENGTH:           5

hello"""


def program(folder: Path, name: str, output: str, status: int = 0, complaint: str = "") -> None:
    file = folder / name
    file.write_text(
        f"#!/bin/sh\n/bin/cat >/dev/null\n/bin/cat <<'END'\n{output}\nEND\necho '{complaint}' >&2\n"
        f"exit {status}\n"
    )
    file.chmod(0o755)


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def decoding(folder: Path, status: int = 0, uid: int | None = None) -> None:
    own = os.getuid() if uid is None else uid
    program(folder, "unmunge", DECODED.format(status=f"any ({status})", uid=own), status)


@pytest.mark.spec("TRY-4")
@pytest.mark.parametrize("status", [8, 14, 15, 17], ids=["bad", "forged", "expired", "replayed"])
async def test_a_credential_that_munged_refuses(programs: Path, status: int) -> None:
    decoding(programs, status)
    with pytest.raises(BadCredential, match=f"status {status}"):
        await MungeReader().read(CREDENTIAL)


@pytest.mark.spec("TRY-4")
@pytest.mark.parametrize(
    "text", ["", "MUNGE:", "MUNGE:--help:", "x" * 5000, f"{CREDENTIAL}\n{CREDENTIAL}", "MUNGE:é:"]
)
async def test_text_of_another_form_never_reaches_unmunge(programs: Path, text: str) -> None:
    program(programs, "unmunge", "must not run", 1)
    with pytest.raises(BadCredential, match="not the form"):
        await MungeReader().read(text)


@pytest.mark.spec("TRY-4")
async def test_a_uid_without_a_name_signs_nobody_in(programs: Path) -> None:
    decoding(programs, uid=3_999_999_999)
    with pytest.raises(BadCredential, match="has no name"):
        await MungeReader().read(CREDENTIAL)


@pytest.mark.spec("TRY-4")
async def test_a_munged_that_is_away_is_unavailable(programs: Path) -> None:
    program(programs, "unmunge", "", 6, "unmunge: Error: Failed to connect")
    with pytest.raises(Unavailable, match="munged does not answer"):
        await MungeReader().read(CREDENTIAL)
    (programs / "unmunge").unlink()
    with pytest.raises(Unavailable, match="unmunge"):
        await MungeReader(Path("/nowhere")).read(CREDENTIAL)


@pytest.mark.spec("TRY-4")
async def test_user_and_text_of_a_good_credential(programs: Path) -> None:
    decoding(programs)
    user, text = await MungeReader().read(CREDENTIAL)
    assert (user, text.strip()) == (OWN, "hello")


@pytest.mark.spec("TRY-4")
def test_a_machine_without_munge_says_what_to_do(programs: Path) -> None:
    program(programs, "munge", "", 1, 'munge: Error: Failed to access "/run/munge.socket"')
    with pytest.raises(Unavailable, match="needs the program munge") as refusal:
        encoded("text")
    assert "Failed to access" in str(refusal.value.hint)


def test_the_credential_is_one_line(programs: Path) -> None:
    program(programs, "munge", CREDENTIAL)
    assert encoded("text") == CREDENTIAL


@pytest.mark.spec("TRY-4")
async def test_a_hundred_wait_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    answered = threading.Event()

    def slow(*_: object, **__: object) -> subprocess.CompletedProcess[str]:
        answered.wait()
        return subprocess.CompletedProcess([], 17, "", "")

    monkeypatch.setattr("lattice.adapters.munge._run", slow)
    reader = MungeReader()
    waiting = [asyncio.create_task(reader.read(CREDENTIAL)) for _ in range(100)]
    await asyncio.sleep(0)
    with pytest.raises(RateLimited):
        await reader.read(CREDENTIAL)
    answered.set()
    found = await asyncio.gather(*waiting, return_exceptions=True)
    assert {type(each) for each in found} == {BadCredential}
    with pytest.raises(BadCredential):
        await reader.read(CREDENTIAL)
