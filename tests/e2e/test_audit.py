"""Who did what is recorded in a chain, and every change of it is named."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.laboratory import Lab
from tests.e2e.people import Person, Said
from tests.e2e.put_right import administrator
from tests.eventually import eventually

pytestmark = [pytest.mark.lab, pytest.mark.timeout(240)]

_BLOCKS = "/lattice/audit/block/"


@pytest.fixture(scope="module")
def olga(lab: Lab) -> Person:
    return administrator(lab)


@pytest.fixture(scope="module")
def alice(lab: Lab) -> Person:
    return Person(lab, "alice").logged_in()


@pytest.fixture(scope="module")
def bob(lab: Lab) -> Person:
    return Person(lab, "bob").logged_in()


@pytest.fixture(scope="module")
def job(lab: Lab) -> Iterator[int]:
    number = lab.sbatch("alice", wrap="echo written; sleep 300")
    lab.wait_job_state(number, "RUNNING")
    yield number
    lab.jobs.cancel_all()


def _sentences(person: Person, *conditions: str) -> list[str]:
    rows = person.asks("audit", "query", *conditions)["rows"]
    return [each["sentence"] for each in rows]


def _verified(person: Person) -> Said:
    """Not recordings of before: their bucket may be away by now."""
    return person.tries("audit", "verify", "--since", "1s")


def _etcd(lab: Lab, *words: str) -> str:
    found: str = lab.etcd.ctl(*words)
    return found


@pytest.mark.story
@pytest.mark.spec("AUDIT-2", "AUDIT-3", "AUTH-7")
@pytest.mark.threat(21, "audit-log")
def test_who_did_what_is_recorded_and_every_change_is_named(
    lab: Lab, alice: Person, bob: Person, olga: Person, job: int
) -> None:
    assert alice.tries("share", str(job), "--with", "bob", "--for", "1h").code == 0
    eventually(lambda: bob.tries("logs", str(job)).out, lambda text: "written" in text)
    done = ["admin", "lock", "user", "mallory", "--reason", "stolen laptop", "--for", "1m"]
    assert olga.tries(*done).code == 0
    seen = eventually(
        lambda: _sentences(alice, "--allocation", str(job)),
        lambda rows: any(each.startswith("bob read") for each in rows),
    )
    assert any(each.startswith(f"alice shared {job}") for each in seen)
    assert all("locked" not in each for each in _sentences(bob))
    eventually(lambda: _sentences(olga, "--act", "lock"), lambda rows: "mallory" in rows[0])
    assert bob.tries("audit", "verify").code == 77

    verified = _verified(olga)
    assert verified.code == 0, verified
    assert verified.out.startswith("OK: ")
    bundle = lab.layout.home / "alice" / f"audit-{job}.bundle"
    assert olga.tries("audit", "export", str(bundle)).code == 0
    assert olga.tries("audit", "verify", str(bundle)).code == 0
    _change_one_bit(bundle)
    found = olga.tries("audit", "verify", str(bundle))
    assert found.code == 1
    assert found.out.startswith("BAD: the first bad entry is 3: ")
    _change_etcd_and_back(lab, olga)


def _change_one_bit(bundle: Path) -> None:
    lines = bundle.read_bytes().splitlines(keepends=True)
    third = next(n for n, each in enumerate(lines) if b'"sequence":3,' in each)
    changed = bytearray(lines[third])
    changed[100] ^= 1
    lines[third] = bytes(changed)
    bundle.write_bytes(b"".join(lines))


def _change_etcd_and_back(lab: Lab, olga: Person) -> None:
    """An entry that is changed in etcd is named by the server too."""
    found = json.loads(_etcd(lab, "get", "--prefix", _BLOCKS, "-w", "json"))["kvs"]
    blocks = {
        base64.b64decode(each["key"]).decode(): base64.b64decode(each["value"]).decode()
        for each in found
    }
    key, value = next(each for each in blocks.items() if '"outcome":"done"' in each[1])
    first = int(key.removeprefix(_BLOCKS))
    _etcd(lab, "put", key, value.replace('"outcome":"done"', '"outcome":"dome"', 1))
    try:
        verdict = _verified(olga)
        assert verdict.code == 1, verdict
        assert verdict.out.startswith(f"BAD: the first bad entry is {first}: ")
    finally:
        _etcd(lab, "put", key, value)
    assert _verified(olga).code == 0
