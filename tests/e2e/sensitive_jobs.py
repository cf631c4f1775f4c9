"""Sensitive jobs of alice's, and the records of their data keys as etcd has them."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from lab.laboratory import Lab
from lab.sensitive import VCLUSTER, site_key
from lattice.domain.cluster_record import CLUSTER_KEY
from lattice.domain.sealed import KEY_ID_BYTES, DataKey, binding, open_part
from lattice.foundation.data_keys import KEYS, KeyRecord
from tests.e2e.attached import Attached
from tests.e2e.people import Person
from tests.eventually import eventually

_ROOT = "/lattice/"


@contextmanager
def claimed(lab: Lab, nodes: str = "n1") -> Iterator[Person]:
    """Alice, while she holds these nodes."""
    person = Person(lab, "alice").logged_in("sensitive:claim")
    lab.jobs.cancel_all()
    made = person.tries("admin", "claim", nodes)
    assert made.code == 0, made.err
    try:
        yield person
    finally:
        lab.jobs.cancel_all()
        person.logged_in("sensitive:claim")
        eventually(lambda: person.tries("admin", "release", nodes).code == 0)


def sensitive_options(alice: Person) -> tuple[str, ...]:
    """The words for sbatch with which a job runs in her claim."""
    (claim,) = alice.asks("admin", "claims")["claims"]
    return (f"--reservation={claim['reservation']}", f"--partition={VCLUSTER}", "-c1")


def sensitive_job(lab: Lab, alice: Person, wrap: str) -> int:
    """A job that runs now."""
    job: int = lab.sbatch("alice", *sensitive_options(alice), wrap=wrap)
    lab.wait_job_state(job, "RUNNING")
    return job


@contextmanager
def recorded_terminal(lab: Lab, alice: Person, job: int) -> Iterator[Attached]:
    """A shell in her job. The first key makes the agent start itself anew: then she tries again."""
    client = eventually(lambda: _opened(lab, alice, job), lambda found: found is not None)
    assert client is not None
    try:
        yield client
    finally:
        client.close()


def _opened(lab: Lab, alice: Person, job: int) -> Attached | None:
    client = Attached(lab, alice, job, command=["sh", "-i"])
    try:
        assert client.word("opened")["recorded"] is True
    except AssertionError:
        client.close()
        return None
    return client


def key_records(lab: Lab) -> dict[str, KeyRecord]:
    """The records of all data keys, by allocation."""
    found = json.loads(lab.etcd.ctl("get", "--prefix", _ROOT + KEYS, "-w", "json"))
    return {
        _text(each["key"]).removeprefix(_ROOT + KEYS): msgspec.json.decode(
            base64.b64decode(each["value"]), type=KeyRecord
        )
        for each in found.get("kvs", ())
    }


def key_record(lab: Lab, job: int) -> tuple[str, KeyRecord]:
    """The identity of an allocation, and the record of its key."""
    ((ref, record),) = (
        each for each in key_records(lab).items() if each[0].partition("@")[0] == str(job)
    )
    return ref, record


def put_key_record(lab: Lab, ref: str, record: KeyRecord) -> None:
    lab.etcd.ctl("put", _ROOT + KEYS + ref, msgspec.json.encode(record).decode())


def remove_key_record(lab: Lab, ref: str) -> None:
    """For keys that a story leaves behind wrapped by a key that goes with the story."""
    lab.etcd.ctl("del", _ROOT + KEYS + ref)


def spooled(lab: Lab, node: str, job: int) -> list[Path]:
    """The files that the agent has of a job."""
    logs = lab.node(node).agent.folder / "state" / "logs"
    return [*logs.glob(f"{job}-*/*")]


def data_key(lab: Lab, ref: str) -> tuple[str, DataKey]:
    """The cluster, and the key of an allocation as a server has it."""
    record = key_records(lab)[ref]
    cluster = json.loads(lab.etcd.ctl("get", "--print-value-only", _ROOT + CLUSTER_KEY))["id"]
    bound = binding("lattice data key 1", cluster, ref)
    wrapping = DataKey(bytes(KEY_ID_BYTES), bytes.fromhex(site_key(record.site_key)))
    secret = open_part(wrapping, bound, record.secret)
    return cluster, DataKey(bytes.fromhex(record.id), secret)


def _text(encoded: str) -> str:
    return base64.b64decode(encoded).decode()
