"""Doctor names exactly what is broken, with what to do; on a site that is well it is all green."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from lab.laboratory import Lab
from lab.users import SERVER_USER
from tests.e2e.people import Person
from tests.e2e.put_right import administrator, put_right
from tests.eventually import eventually

pytestmark = [pytest.mark.lab, pytest.mark.timeout(240)]

_FINE = {"ok", "off"}
_PATIENCE_S = 100.0
_OF_THE_LAB = {
    "agents.ebpf",
    "agents.missing",
    "certificates.authority",
    "certificates.expiry",
    "server.event_loop",
}
"""The lab's certificates last a week, its virtual node is off, and its kernel may not run eBPF.

The pauses of an event loop are those of a busy machine.
"""
_LATE = re.compile(r"answered in \d")
"""A part that is well and slow: that is the busy machine, too."""


@pytest.fixture(scope="module")
def olga(lab: Lab) -> Person:
    return administrator(lab)


@pytest.fixture(autouse=True)
def in_order(quiet_lab: Lab, olga: Person) -> Iterator[None]:
    # Agents measure themselves every half a minute.
    eventually(lambda: problems(olga), lambda found: not found, patience_s=_PATIENCE_S)
    yield
    put_right(quiet_lab, olga)


def examined(person: Person) -> dict[str, Any]:
    """The document; the exit code is that of the verdict, so it is no error."""
    told = person.tries("admin", "doctor", "-o", "json")
    assert told.code in {0, 110, 111, 112}, told
    found: dict[str, Any] = json.loads(told.out)
    return found


def problems(person: Person) -> dict[str, dict[str, str]]:
    """The checks that are neither ok nor off, by id, without those of any lab."""
    checks = examined(person)["checks"]
    return {
        each["id"]: each
        for each in checks
        if each["state"] not in _FINE
        and each["id"] not in _OF_THE_LAB
        and not (each["state"] == "warning" and _LATE.match(each["evidence"]))
    }


def states(found: dict[str, dict[str, str]]) -> dict[str, str]:
    return {name: each["state"] for name, each in found.items()}


@contextmanager
def _stopped(process: Any) -> Iterator[None]:
    process.stop()
    try:
        yield
    finally:
        process.up()


@pytest.mark.story
@pytest.mark.spec("OPS-8")
def test_a_lab_that_is_well_is_green_and_each_broken_part_is_named(
    quiet_lab: Lab, olga: Person, alice: Person
) -> None:
    assert examined(olga)["counts"]["ok"] >= 30
    assert alice.tries("admin", "doctor").code == 77

    with _stopped(quiet_lab.node("n1").agent.helper):
        broken = eventually(
            lambda: problems(olga), lambda found: "agents.helper" in found, patience_s=_PATIENCE_S
        )
        assert states(broken)["agents.helper"] == "failed"
        assert set(broken) <= {"agents.helper", "agents.clock"}, "the helper has a clock, too"
        assert "n1" in broken["agents.helper"]["evidence"]
        assert "systemctl restart lattice-helper" in broken["agents.helper"]["remedy"]
        told = olga.tries("admin", "doctor")
        assert told.code == 111
        assert "✗ failed: every agent has its helper  (agents.helper)" in told.out

    with _stopped(quiet_lab.slurm.dbd):
        broken = eventually(lambda: problems(olga), lambda found: "slurm.accounting" in found)
        assert set(broken) - {"agents.helper", "agents.clock"} <= {
            "slurm.accounting",
            "slurm.private_data",
            "slurm.operate",
        }
        assert broken["slurm.accounting"]["state"] == "failed"
        assert "slurmdbd" in broken["slurm.accounting"]["remedy"]


@pytest.mark.spec("OPS-8")
def test_a_lost_agent_and_a_lost_member_of_etcd_are_named(quiet_lab: Lab, olga: Person) -> None:
    quiet_lab.node("n2").agent.kill()
    member = quiet_lab.etcd.members[0]
    member.kill()
    broken = eventually(
        lambda: problems(olga),
        lambda found: {"agents.linked", "state.members"} <= found.keys(),
        patience_s=_PATIENCE_S,
    )
    assert "n2" in broken["agents.linked"]["evidence"]
    assert "lattice-agent" in broken["agents.linked"]["remedy"]
    assert broken["state.redundancy"]["state"] == "failed"
    member.up()
    quiet_lab.node("n2").agent.start()


@pytest.mark.long
@pytest.mark.spec("OPS-8")
def test_a_missing_right_in_slurm_is_named_with_its_command(quiet_lab: Lab, olga: Person) -> None:
    level = ["sacctmgr", "-i", "modify", "user", SERVER_USER, "set"]
    quiet_lab.ctl([*level, "adminlevel=none"])
    try:
        broken = eventually(
            lambda: problems(olga),
            lambda found: "slurm.private_data" in found,
            patience_s=_PATIENCE_S,
        )
        assert states(broken) == {"slurm.private_data": "failed"}
        assert "adminlevel=operator" in broken["slurm.private_data"]["remedy"]
    finally:
        quiet_lab.ctl([*level, "adminlevel=operator"])


@pytest.mark.spec("OPS-8")
def test_a_frozen_metric_store_hides_no_other_check(quiet_lab: Lab, olga: Person) -> None:
    process = quiet_lab.victoriametrics.processes[0]
    process.freeze()
    try:
        broken = problems(olga)
    finally:
        process.thaw()
    assert {"metrics.query", "metrics.write"} <= broken.keys()
    assert not any(name.startswith(("slurm.", "state.", "agents.")) for name in broken)


@pytest.mark.spec("OPS-1")
def test_readiness_and_health_are_public_and_name_engines_without_addresses(quiet_lab: Lab) -> None:
    ca = str(quiet_lab.layout.certificates / "ca.crt")
    for path in ("/healthz", "/readyz"):
        url = quiet_lab.servers[0].url + path
        done = quiet_lab.ctl(["curl", "-sS", "-w", " %{http_code}", "--cacert", ca, url]).stdout
        body, _, status = done.rpartition(" ")
        assert status == "200"
        engines = json.loads(body)["engines"]
        assert set(engines) == {"slurm", "accounting", "state", "objects", "metrics"}
        assert "127.0.0.1" not in body
        assert "/run/" not in body
