"""Nodes taken out of service and put back, by people, on a real Slurm."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from lab.laboratory import Lab
from lab.slurm_config import PARTITIONS
from tests.e2e.people import Person, Said
from tests.eventually import eventually

pytestmark = pytest.mark.lab

NODE = "n2"


class Operator(Person):
    """Known to the identity provider alone: sits at dave's terminal with a token of his own."""

    def logged_in(self, *scopes: str) -> Person:
        token = self.lab.oidc.token("oscar", " ".join(("openid", *scopes)))
        self._token = str(token["access_token"])
        return self


@pytest.fixture
def oscar(lab: Lab) -> Person:
    return Operator(lab, "dave").logged_in("operator")


@pytest.fixture(autouse=True)
def in_service(quiet_lab: Lab) -> Iterator[None]:
    """Every story leaves the nodes as it found them."""
    yield
    quiet_lab.jobs.cancel_all()
    quiet_lab.ctl(["scontrol", "update", "nodename=n[1-3]", "state=resume"], check=False)
    eventually(lambda: sinfo(quiet_lab, "n[1-3]"), lambda seen: set(seen.split()) == {"idle"})


def sinfo(lab: Lab, node: str = NODE) -> str:
    return lab.ctl(["sinfo", "-h", "-N", "-n", node, "-o", "%T"]).stdout


def shown(person: Person, node: str = NODE) -> dict[str, Any]:
    found: dict[str, Any] = person.asks("nodes", node)["node"]
    return found


def admin(person: Person, act: str, *words: str) -> Said:
    return person.tries("admin", act, NODE, *words)


@pytest.mark.story
@pytest.mark.spec("OPS-4")
def test_drain_with_work_on_it_then_undrain(quiet_lab: Lab, oscar: Person, alice: Person) -> None:
    job = quiet_lab.sbatch("alice", f"--nodelist={NODE}", wrap="sleep 300")
    quiet_lab.wait_job_state(job, "RUNNING")
    said = admin(oscar, "drain", "--reason", "bad DIMM")
    assert said.code == 0, said
    assert "draining" in said.out
    assert "undrain" in said.err, "how to take it back"
    drained = shown(alice)
    assert drained["state"] == "draining", "seen by the very next look"
    assert drained["reason"] == "oscar: bad DIMM"
    assert quiet_lab.jobs.states(job) == ["RUNNING"], "what runs goes on"
    refused = admin(oscar, "undrain")
    assert refused.code == 2
    assert "still draining" in refused.err
    assert "from drained only" in refused.err
    assert "Hint:" in refused.err
    waiting = quiet_lab.popen_as(
        "dave", ["lattice", "admin", "drain", NODE, "--wait"], env=oscar.bearer
    )
    quiet_lab.jobs.cancel(job)
    out, err = waiting.communicate(timeout=60)
    assert waiting.returncode == 0, (out, err)
    assert f"{NODE} is drained." in err
    assert eventually(lambda: shown(alice), lambda node: node["state"] == "drained")
    again = admin(oscar, "drain", "--reason", "another")
    assert again.code == 0
    assert "already" in again.out
    assert shown(alice)["reason"] == "oscar: bad DIMM"
    back = admin(oscar, "undrain")
    assert back.code == 0, back
    assert "ready" in back.out
    eventually(lambda: shown(alice)["state"], lambda state: state == "ready")
    assert "already" in admin(oscar, "undrain").out


@pytest.mark.spec("OPS-4")
def test_disable_ends_work_and_enable_brings_the_node_back(
    quiet_lab: Lab, oscar: Person, alice: Person
) -> None:
    job = quiet_lab.sbatch("alice", "--no-requeue", f"--nodelist={NODE}", wrap="sleep 300")
    quiet_lab.wait_job_state(job, "RUNNING")
    said = admin(oscar, "disable", "--reason", "smoke")
    assert said.code == 0, said
    quiet_lab.wait_job_state(job, {"NODE_FAIL", "FAILED", "CANCELLED"})
    for _ in range(10):
        assert set(sinfo(quiet_lab).split()) <= {"down", "drained"}, "it stays out of service"
        time.sleep(0.2)
    assert admin(oscar, "enable").code == 0
    eventually(lambda: shown(alice)["state"], lambda state: state == "ready")


@pytest.mark.spec("AUTH-4")
def test_who_may(quiet_lab: Lab, bob: Person, carol: Person) -> None:
    for act in ("drain", "undrain", "disable", "enable"):
        said = admin(bob, act, "--reason", "because")
        assert said.code == 77, said
        assert "Operator" in said.err
    for act in ("disable", "enable"):
        assert admin(carol, act, "--reason", "because").code == 77
    assert set(sinfo(quiet_lab).split()) == {"idle"}


@contextmanager
def reserved_for(lab: Lab, accounts: str) -> Iterator[None]:
    """Every partition admits these accounts alone."""

    def admit(who: str) -> None:
        for name in PARTITIONS:
            lab.ctl(["scontrol", "update", f"partitionname={name}", f"allowaccounts={who}"])

    admit(accounts)
    try:
        yield
    finally:
        admit("ALL")


@pytest.mark.story
@pytest.mark.spec("AUTH-4", "OPS-4")
@pytest.mark.threat("tenant-drain")
def test_a_tenant_admin_drains_what_serves_no_other_tenant(quiet_lab: Lab, carol: Person) -> None:
    """Attack 42."""
    refused = admin(carol, "drain", "--reason", "tenant's wish")
    assert refused.code == 77
    assert "admits every account" in refused.err
    assert set(sinfo(quiet_lab).split()) == {"idle"}
    with reserved_for(quiet_lab, "physics,research,theory,biology,genomics"):
        assert admin(carol, "drain", "--reason", "tenant's wish").code == 77
    with reserved_for(quiet_lab, "biology,genomics"):
        said = admin(carol, "drain", "--reason", "tenant's wish")
        assert said.code == 0, said
        assert "drained" in sinfo(quiet_lab)
        back = admin(carol, "undrain")
        assert back.code == 0, back
    eventually(lambda: sinfo(quiet_lab), lambda seen: set(seen.split()) == {"idle"})


@pytest.mark.spec("OPS-4")
def test_several_nodes_or_none(quiet_lab: Lab, oscar: Person) -> None:
    said = oscar.tries("admin", "drain", "n[1-2]", "n3", "--reason", "BIOS")
    assert said.code == 0, said
    assert set(sinfo(quiet_lab, "n[1-3]").split()) == {"drained"}
    missing = oscar.tries("admin", "undrain", "n[1-4]")
    assert missing.code in {2, 102}
    assert set(sinfo(quiet_lab, "n[1-3]").split()) == {"drained"}
    assert oscar.tries("admin", "undrain", "n[1-3]").code == 0


@pytest.mark.spec("CLI-1")
@pytest.mark.parametrize(
    "reason",
    [
        "\x1b]0;owned\x07\x1b[2J",
        "two\nNodeName=n1 State=DOWN",
        "x' \" ; $(touch /tmp/owned) state=resume",
        "日本語の理由 \u202egnp.exe",
        "r" * 5000,
    ],
)
def test_hostile_reasons_stay_text(
    quiet_lab: Lab, oscar: Person, alice: Person, reason: str
) -> None:
    assert admin(oscar, "drain", "--reason", reason).code == 0
    node = eventually(lambda: shown(alice), lambda seen: seen["state"] == "drained")
    assert node["reason"].startswith("oscar: ")
    assert node["reason"].isprintable()
    assert len(node["reason"]) <= 200
    text = alice.tries("nodes").out
    assert all(line.isprintable() for line in text.splitlines())
    assert "idle" in sinfo(quiet_lab, "n1")


@pytest.mark.spec("CLI-2", "OPS-4", "OPS-8")
@pytest.mark.threat("gate-changes")
def test_a_site_that_does_not_allow_it_has_the_setting_named(quiet_lab: Lab, oscar: Person) -> None:
    gate = quiet_lab.gate
    everything = gate.allowed
    gate.allowed = ("tenants",)
    gate.process.restart()
    try:
        said = eventually(
            lambda: admin(oscar, "drain", "--reason", "x"), lambda seen: seen.code == 78
        )
        assert "does not let Lattice change nodes in Slurm" in said.err
        assert "--allow nodes" in said.err
        assert set(sinfo(quiet_lab).split()) == {"idle"}
    finally:
        gate.allowed = everything
        gate.process.restart()
    eventually(lambda: admin(oscar, "drain", "--reason", "x").code, lambda code: code == 0)


def test_every_act_is_in_the_servers_log(quiet_lab: Lab, oscar: Person) -> None:
    admin(oscar, "drain", "--reason", "bad fan")
    log = quiet_lab.servers[0].process.log_file.read_text()
    lines = [line for line in log.splitlines() if '"act": "drain"' in line]
    assert any(NODE in line and "bad fan" in line for line in lines)
