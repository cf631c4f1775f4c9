"""Who can write to etcd changes the audit log of a real site: each change is named, exit code 1."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import pytest
import yaml

from lab.files import give
from lab.laboratory import Lab
from lab.users import SERVER_USER
from lattice.base.signatures import SigningKey
from lattice.domain.audit import decode
from lattice.domain.audit_chain import ChainPoint, make_batch
from tests.e2e.people import Person, Said
from tests.e2e.put_right import administrator
from tests.eventually import eventually

pytestmark = [pytest.mark.lab, pytest.mark.long, pytest.mark.timeout(900)]

_HEAD = "/lattice/audit/head"
_BLOCKS = "/lattice/audit/block/"

Log = dict[str, str]
"""The keys of the log in etcd, and their values."""


@pytest.fixture(scope="module")
def olga(lab: Lab) -> Iterator[Person]:
    """While the servers write anchors to a file outside."""
    anchors = lab.layout.state / "audit-anchors"
    anchors.touch()
    give(anchors, SERVER_USER)
    before = {each.name: each.config_file.read_text() for each in lab.servers}
    for server in lab.servers:
        sections: dict[str, Any] = yaml.safe_load(before[server.name])
        sections["audit"] = sections.get("audit", {}) | {"anchor": str(anchors)}
        server.write_config(sections)
        server.process.restart()
    person = administrator(lab)
    # More than one batch, each of an act of its own.
    for name in ("mallory", "trudy", "oscar-the-second", "eve"):
        eventually(partial(_acts, person, name))
    yield person
    for server in lab.servers:
        server.write_config(yaml.safe_load(before[server.name]))
        server.process.restart()


def _acts(olga: Person, name: str) -> bool:
    """Something that is recorded."""
    words = ("admin", "lock", "user", name, "--reason", "an entry", "--for", "1m")
    return olga.tries(*words).code == 0


def _read(lab: Lab) -> Log:
    found = json.loads(lab.etcd.ctl("get", "--prefix", "/lattice/audit/", "-w", "json"))["kvs"]
    pairs = {_text(each["key"]): _text(each["value"]) for each in found}
    return {key: value for key, value in pairs.items() if key == _HEAD or key.startswith(_BLOCKS)}


def _text(encoded: str) -> str:
    return base64.b64decode(encoded).decode()


def _write(lab: Lab, before: Mapping[str, str], after: Mapping[str, str]) -> None:
    """Change what differs, and nothing else."""
    for key in before.keys() - after.keys():
        lab.etcd.ctl("del", key)
    for key, value in after.items():
        if before.get(key) != value:
            lab.etcd.ctl("put", key, value)


def _blocks(log: Log) -> list[str]:
    return sorted((each for each in log if each.startswith(_BLOCKS)), key=_first)


def _first(block: str) -> int:
    """The number of its first entry."""
    return int(block.removeprefix(_BLOCKS))


def _verified(olga: Person) -> Said:
    said = eventually(
        lambda: olga.lattice("audit", "verify", "--since", "1s", env=olga.bearer, timeout_s=120),
        lambda seen: seen.out.startswith(("OK:", "BAD:")),
        patience_s=180,
        pause_s=5,
    )
    assert said.code == (0 if said.out.startswith("OK:") else 1), said
    return said


def _flipped(log: Log) -> tuple[Log, int]:
    """One bit of the second entry of all."""
    block = _blocks(log)[1]
    changed = log[block].replace('"outcome":"done"', '"outcome":"dome"', 1)
    assert changed != log[block]
    return {**log, block: changed}, _first(block)


def _deleted(log: Log) -> tuple[Log, int]:
    block = _blocks(log)[1]
    return {key: value for key, value in log.items() if key != block}, _first(block)


def _swapped(log: Log) -> tuple[Log, int]:
    one, two = _blocks(log)[1:3]
    return {**log, one: log[two], two: log[one]}, _first(one)


def _cut(log: Log) -> tuple[Log, int]:
    """The last batch is gone, and the head does not know of it."""
    last, rest = _without_last(log)
    return rest, _first(last)


def _signed_again(log: Log) -> tuple[Log, int]:
    """The last batch tells of somebody else, with sound links and another key."""
    last, rest = _without_last(log)
    head = json.loads(rest[_HEAD])
    point = ChainPoint(head["newest"][0], bytes.fromhex(head["newest"][1]))
    lines = [each for each in log[last].encode().splitlines() if not each.startswith(b"=")]
    entries = [decode(each.partition(b" ")[2].replace(b"olga", b"ulga")) for each in lines]
    other = SigningKey.generate()
    batch = make_batch(
        head["cluster"], point, entries, lambda message: (other.name, other.sign(message))
    )
    head["newest"] = [batch.end.sequence, batch.end.link.hex()]
    forged = batch.text.decode()
    assert forged != log[last]
    return {**rest, last: forged, _HEAD: _document(head)}, _first(last)


def _without_last(log: Log) -> tuple[str, Log]:
    """The last batch, and the log as it was before."""
    *_, before, last = _blocks(log)
    head = json.loads(log[_HEAD])
    *_, line, _ = log[before].splitlines()
    head["newest"] = [_first(last) - 1, line.partition(" ")[0]]
    head["retained_bytes"] -= len(log[last])
    rest = {key: value for key, value in log.items() if key != last}
    return last, {**rest, _HEAD: _document(head)}


def _document(head: dict[str, Any]) -> str:
    return json.dumps(head, separators=(",", ":"))


CHANGES: dict[str, Callable[[Log], tuple[Log, int]]] = {
    "one bit flipped": _flipped,
    "deleted": _deleted,
    "two swapped": _swapped,
    "cut at the end": _cut,
    "signed again": _signed_again,
}


@pytest.mark.spec("AUDIT-2", "AUDIT-3")
@pytest.mark.threat(21, "audit-log")
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_in_etcd_is_named(lab: Lab, olga: Person, change: str) -> None:
    before = _stopped(lab)
    after, first_bad = CHANGES[change](before)
    _begin_with(lab, after)
    try:
        said = _verified(olga)
        assert said.code == 1, said
        assert said.out.startswith(f"BAD: the first bad entry is {first_bad}: "), said
    finally:
        _stop(lab)
        _begin_with(lab, before)
    assert _verified(olga).code == 0
    assert eventually(lambda: _acts(olga, "mallory")), "the log goes on"


@pytest.mark.spec("AUDIT-2", "AUDIT-3")
@pytest.mark.threat(21, "audit-log")
def test_a_state_that_is_rolled_back_is_named(lab: Lab, olga: Person) -> None:
    """All of the log in etcd is as it was in a snapshot; the anchors outside say otherwise."""
    snapshot = _read(lab)
    lost = json.loads(snapshot[_HEAD])["newest"][0] + 1
    assert eventually(lambda: _acts(olga, "eve"))
    eventually(lambda: json.loads(_read(lab)[_HEAD])["newest"][0] >= lost)
    now = _stopped(lab)
    _begin_with(lab, snapshot)
    try:
        said = _verified(olga)
        assert said.code == 1, said
    finally:
        _stop(lab)
        _begin_with(lab, now)
    assert _verified(olga).code == 0


def _stop(lab: Lab) -> None:
    for server in lab.servers:
        server.stop()


def _begin_with(lab: Lab, log: Log) -> None:
    """Servers start on this log. They remember nothing of the one before."""
    _write(lab, _read(lab), log)
    for server in lab.servers:
        server.start()


def _stopped(lab: Lab) -> Log:
    """The log while no server runs. Its newest entry is in the file outside."""
    anchors = lab.layout.state / "audit-anchors"
    for _ in range(10):
        eventually(lambda: _newest(_read(lab)) in anchors.read_text(), pause_s=0.5)
        _stop(lab)
        log = _read(lab)
        if _newest(log) in anchors.read_text():
            return log
        for server in lab.servers:
            server.start()
    raise AssertionError("the log grows all the time")


def _newest(log: Log) -> str:
    """The link of the newest entry."""
    return str(json.loads(log[_HEAD])["newest"][1])
