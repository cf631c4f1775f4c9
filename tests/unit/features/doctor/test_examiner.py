"""What doctor names when one thing is broken, and that it names nothing else."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from lattice.base.errors import Unavailable
from lattice.domain.accounts import Account, AccountTree
from lattice.domain.administration import VerbGroup
from lattice.domain.metricstore import SeriesPoints
from lattice.domain.node import AgentFacts, Condition, HealthState, Node, NodeHealth, NodeState
from lattice.domain.object_lock import LockMode, ObjectLock
from lattice.domain.presence import Link, Presence, PresenceReading
from lattice.domain.source import AGREED, Source
from lattice.domain.vcluster import Vcluster, VclusterKind, Vclusters
from lattice.features.doctor.model import Check, CheckState, Examination
from lattice.features.doctor.service.examiner import Examiner
from lattice.features.doctor.service.facts import (
    AgentTrust,
    ReplicaFacts,
    RightFacts,
    SignInFacts,
    StateFacts,
)
from lattice.features.doctor.service.measured import Inspected, NotUsed
from lattice.features.doctor.service.server import gate
from lattice.foundation.data_keys import DataKeys
from tests.fakes.cluster import allocation
from tests.fakes.foundation import in_memory_foundation
from tests.fakes.in_memory_administration import InMemoryAdministration
from tests.fakes.in_memory_metrics import InMemoryMetricStore
from tests.fakes.in_memory_objects import InMemoryObjectStore
from tests.fakes.in_memory_operator import InMemoryNodeOperator
from tests.fakes.in_memory_scheduler import InMemoryScheduler
from tests.fakes.in_memory_site_keys import InMemorySiteKeys
from tests.fakes.in_memory_state import InMemoryStateStore
from tests.fakes.inspection import Hangs, InMemoryInspection
from tests.fakes.manual_clock import ManualClock

SOUND = AgentFacts(
    helper="ok",
    latency="ok",
    spool_bytes=0,
    spool_most_bytes=2**30,
    free_bytes=40 * 2**30,
    clock_ahead_s=0.01,
)


class AnsweringMetrics(InMemoryMetricStore):
    """Answers every query with one point."""

    async def query(
        self,
        promql: str,  # noqa: ARG002
        *,
        at: float,
        within_s: float = 10.0,  # noqa: ARG002
    ) -> tuple[SeriesPoints, ...]:
        self._answer()
        return (SeriesPoints({}, ((at, at - 20),)),)


class Agents:
    """The port `Presences`."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self.records: dict[str, Presence] = {}
        self.ok = True

    def add(self, node: str, agent: AgentFacts = SOUND, **more: Any) -> None:
        health = NodeHealth(HealthState.UNKNOWN, lacks=more.pop("lacks", ()), agent=agent)
        usual: dict[str, Any] = {
            "node": node, "epoch": 1, "linked": True, "since": 1.0, "registered": 1.0,
            "condition": Condition.READY, "agent_version": "1.0", "health": health,
        }  # fmt: skip
        self.records[node] = Presence(**usual | more)

    def presences(self) -> PresenceReading:
        source = Source(name=AGREED, ok=self.ok, as_of=self._clock.now())
        return PresenceReading(self.records, dict[str, Link](), source)


class Site:
    """A whole site that is well; a test breaks one thing of it."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.scheduler = InMemoryScheduler(self.clock)
        self.scheduler.nodes = [
            Node(name=name, state=NodeState.READY, slurm_state="idle") for name in ("n1", "n2")
        ]
        self.scheduler.accounts = AccountTree.of([Account("physics")], {"alice": ["physics"]})
        self.operator = InMemoryNodeOperator(self.scheduler)
        self.operator.partitions = {"batch": None}
        self.state = InMemoryStateStore(self.clock)
        self.metrics: InMemoryMetricStore | None = AnsweringMetrics()
        self.objects: InMemoryObjectStore | None = InMemoryObjectStore(self.clock)
        self.agents = Agents(self.clock)
        self.agents.add("n1")
        self.agents.add("n2")
        self.inspection = InMemoryInspection(self.clock.now())
        self.inspection.facts["munge"] = NotUsed("nobody signs in by MUNGE")
        self.inspection.facts["token_judge"] = NotUsed("nobody signs in by a Slurm token")
        self.inspection.facts["object_folder"] = NotUsed("no folder")
        self.administration = InMemoryAdministration()
        self.without_gate = False
        self.views = Vclusters((Vcluster("big", VclusterKind.HPC, "batch"),))
        self.version = "1.0"
        self.parts: dict[str, Any] = {}

    def seal(self) -> InMemorySiteKeys:
        """The site has sensitive work."""

        async def cluster() -> str:
            return "c1"

        keys = InMemorySiteKeys()
        self.parts = {
            "site_keys": keys,
            "data_keys": DataKeys(self.state, keys, cluster, self.clock),
            "sensitive_objects": InMemoryObjectStore(self.clock),
        }
        return keys

    def upgrade(self, version: str) -> None:
        """All servers are of this version."""
        self.version = version
        self.inspection.facts["replicas"] = (ReplicaFacts(id="s2", version=version),)

    async def examine(self) -> Examination:
        parts: dict[str, Any] = {"gate": None} if self.without_gate else {}
        foundation = in_memory_foundation(
            self.clock,
            scheduler=self.scheduler,
            operator=self.operator,
            administration=self.administration,
            state=self.state,
            metrics=self.metrics,
            objects=self.objects,
            presences=self.agents,
            views=self.views,
            **parts,
            **self.parts,
        )
        examiner = Examiner(foundation, self.inspection, self.version, within_s=0.5)
        return await examiner.examine()

    async def problems(self) -> dict[str, Check]:
        """The checks that are neither ok nor off, by id."""
        found = await self.examine()
        fine = {CheckState.OK, CheckState.OFF}
        return {each.id: each for each in found.checks if each.state not in fine}


def states(found: dict[str, Check]) -> dict[str, str]:
    return {name: each.state.value for name, each in found.items()}


@pytest.fixture
def site() -> Site:
    return Site()


@pytest.mark.spec("OPS-8")
async def test_a_site_that_is_well_has_thirty_green_checks(site: Site) -> None:
    found = await site.examine()
    assert states(await site.problems()) == {}
    assert found.counts.ok >= 30
    assert len({each.id for each in found.checks}) == len(found.checks)
    assert all(each.evidence for each in found.checks)
    assert all(each.remedy == "" for each in found.checks)
    assert (await site.state.list("")).entries == (), "nothing is left of the probes"
    assert site.objects is not None
    assert [each.key async for each in site.objects.listing("")] == []


async def test_sensitive_work_that_is_well(site: Site) -> None:
    site.seal()
    await site.parts["data_keys"].key_of(allocation(7, "alice", "research"))
    assert await site.problems() == {}
    assert [each.key async for each in site.parts["sensitive_objects"].listing("")] == []


async def test_site_keys_that_do_not_answer(site: Site) -> None:
    site.seal().away = True
    problems = await site.problems()
    assert states(problems) == {"objects.site_keys": "failed", "objects.rotation": "unknown"}


async def test_data_keys_of_an_older_site_key_that_is_gone(site: Site) -> None:
    keys = site.seal()
    await site.parts["data_keys"].key_of(allocation(7, "alice", "research"))
    keys.rotate("site-2")
    assert await site.problems() == {}, "a server wraps it again soon"
    del keys.keys["site-1"]
    site.parts["data_keys"].trouble = "There is no key 'site-1'."
    problems = await site.problems()
    assert states(problems) == {"objects.rotation": "warning"}
    assert "1 are wrapped by an older one: There is no key" in problems["objects.rotation"].evidence


async def test_a_sensitive_bucket_that_does_not_answer(site: Site) -> None:
    site.seal()
    site.parts["sensitive_objects"].away = True
    assert states(await site.problems()) == {"objects.sensitive": "failed"}


@pytest.mark.spec("OPS-8")
async def test_a_single_server_has_thirty_checks_some_of_them_off(site: Site) -> None:
    facts = site.inspection.facts
    facts["state"] = StateFacts(lasts=True, single=True, size_bytes=2**20)
    facts["members"] = NotUsed("no etcd")
    facts["people_certificate"] = NotUsed("no TLS")
    facts["provider_keys"] = NotUsed("no provider")
    facts["sign_in"] = SignInFacts(mode="munge", munge=True, encrypts=False, loopback=True)
    facts["munge"] = "lattice"
    site.metrics = None
    found = await site.examine()
    off = {each.id: each.evidence for each in found.checks if each.state is CheckState.OFF}
    assert states(await site.problems()) == {}
    assert len(found.checks) >= 30
    assert "no high availability" in off["state.redundancy"]
    assert "no high availability" in off["server.replicas"]
    assert "no metric store is configured" in off["metrics.query"]
    assert {"certificates.expiry", "sign_in.keys", "metrics.newest"} <= off.keys()


@pytest.mark.spec("OPS-8")
async def test_engines_that_hang_cost_one_deadline_and_are_named(site: Site) -> None:
    facts = site.inspection.facts
    for name in ("controller", "accounting", "rights", "schemas", "controller_ahead_s"):
        facts[name] = Hangs
    found = await site.problems()
    assert states(found) == {
        "slurm.controller": "failed",
        "slurm.accounting": "failed",
        "slurm.schema": "failed",
        "slurm.release": "unknown",
        "slurm.cluster": "unknown",
        "slurm.private_data": "unknown",
        "slurm.clock": "unknown",
    }
    assert found["slurm.controller"].evidence == "no answer within 0.5 s"
    assert found["slurm.release"].evidence == "slurmctld: no answer within 0.5 s"
    assert "slurmctld" in found["slurm.controller"].remedy


async def test_a_stopped_slurmdbd_is_named_alone_with_what_depends_on_it(site: Site) -> None:
    text = "sacctmgr -n show configuration failed with 1:\nConnection refused"
    site.inspection.facts["accounting"] = site.inspection.facts["rights"] = Unavailable(text)
    found = await site.problems()
    assert states(found) == {
        "slurm.accounting": "failed",
        "slurm.private_data": "unknown",
    }
    assert "Connection refused" in found["slurm.accounting"].evidence
    assert found["slurm.private_data"].evidence == "not known while slurm.accounting fails"
    assert "systemctl status slurmdbd" in found["slurm.accounting"].remedy


async def test_a_missing_right_has_the_command_that_gives_it(site: Site) -> None:
    hidden = (
        "Slurm hides jobs of others from its account lattice (PrivateData). An administrator of "
        "Slurm runs: sacctmgr modify user lattice set adminlevel=operator"
    )
    site.inspection.facts["rights"] = RightFacts(hidden=hidden)
    found = await site.problems()
    assert states(found) == {"slurm.private_data": "failed"}
    assert "adminlevel=operator" in found["slurm.private_data"].remedy
    assert "PrivateData" in found["slurm.private_data"].evidence


async def test_a_lost_state_is_failed_and_nothing_of_it_is_ok(site: Site) -> None:
    members = site.inspection.facts["members"]
    away = tuple(replace(each, reason="can't be reached") for each in members[:2])
    site.inspection.facts["members"] = (*away, replace(members[2], has_leader=False))
    site.state.away = True
    assert states(await site.problems()) == {
        "state.reads": "failed",
        "state.writes": "failed",
        "state.members": "failed",
        "state.redundancy": "failed",
    }


async def test_one_member_less_is_named_while_all_else_is_well(site: Site) -> None:
    members = site.inspection.facts["members"]
    site.inspection.facts["members"] = (*members[:2], replace(members[2], reason="is silent"))
    found = await site.problems()
    assert states(found) == {"state.members": "failed", "state.redundancy": "failed"}
    assert "e3:2379: is silent" in found["state.members"].evidence


async def test_stores_that_are_away_are_named(site: Site) -> None:
    assert site.metrics is not None
    assert site.objects is not None
    site.metrics.away = site.objects.away = True
    assert states(await site.problems()) == {
        "metrics.query": "failed",
        "metrics.write": "failed",
        "metrics.newest": "unknown",
        "objects.write": "failed",
        "objects.read": "unknown",
        "objects.list": "unknown",
    }


async def test_an_archive_that_somebody_could_delete_is_named(site: Site) -> None:
    facts = site.inspection.facts
    sound = facts["archive_lock"]

    async def found(lock: ObjectLock) -> tuple[str, str]:
        facts["archive_lock"] = replace(sound, lock=lock)
        check = (await site.problems())["objects.lock"]
        assert "compliance mode" in check.remedy
        return check.state.value, check.evidence

    assert await found(ObjectLock()) == (
        "failed",
        "site-audit has no object lock with a default retention: who has its key can delete",
    )
    assert (await found(ObjectLock(LockMode.GOVERNANCE, 9000)))[0] == "warning"
    assert await found(ObjectLock(LockMode.COMPLIANCE, 1)) == (
        "warning",
        "site-audit keeps objects for 1 days, and 2555 are wanted",
    )
    facts["archive_lock"] = NotUsed("the audit log has no bucket of its own (audit.bucket)")
    assert await site.problems() == {}


async def test_a_lock_that_is_longer_than_the_retention_is_named(site: Site) -> None:
    facts = site.inspection.facts
    sound = facts["sensitive_lock"]
    for days in (0.5, 90):
        facts["sensitive_lock"] = replace(sound, lock=ObjectLock(LockMode.GOVERNANCE, days))
        assert await site.problems() == {}
    facts["sensitive_lock"] = replace(sound, lock=ObjectLock(LockMode.COMPLIANCE, 365))
    problems = await site.problems()
    assert states(problems) == {"objects.retention": "warning"}
    assert problems["objects.retention"].evidence == (
        "site-sensitive keeps objects for 365 days, and they are to be removed after 90: "
        "till then they stay, without a key"
    )
    facts["sensitive_lock"] = NotUsed("no retention is set")
    assert await site.problems() == {}


async def test_certificates_warn_before_they_fail(site: Site) -> None:
    facts = site.inspection.facts
    sound = facts["people_certificate"]

    async def expiry(left: timedelta) -> tuple[str, str]:
        facts["people_certificate"] = replace(sound, expires=site.clock.now() + left)
        found = (await site.problems()).get("certificates.expiry")
        return (found.state.value, found.remedy) if found else ("ok", "")

    assert (await expiry(timedelta(days=15)))[0] == "ok"
    assert (await expiry(timedelta(days=13)))[0] == "warning"
    assert (await expiry(timedelta(hours=23)))[0] == "failed"
    state, remedy = await expiry(timedelta(seconds=-1))
    assert (state, "api.tls_cert" in remedy) == ("failed", True)
    facts["people_certificate"] = replace(sound, names=("other",), fault="a part is missing")
    assert states(await site.problems()) == {
        "certificates.names": "failed",
        "certificates.chain": "warning",
    }


@pytest.mark.parametrize(
    ("facts", "broken"),
    [
        (replace(SOUND, helper="Connection refused", latency=""), ("helper", "failed")),
        (replace(SOUND, latency="libbpf.so.1 is not installed"), ("ebpf", "warning")),
        (replace(SOUND, spool_bytes=2**30), ("spool", "failed")),
        (replace(SOUND, spool_bytes=600 * 2**20), ("spool", "warning")),
        (replace(SOUND, free_bytes=100 * 2**20), ("disk", "warning")),
        (replace(SOUND, clock_ahead_s=-302.0), ("clock", "warning")),
        (replace(SOUND, clock_ahead_s=None), ("clock", "unknown")),
    ],
)
@pytest.mark.spec("OPS-8")
async def test_what_an_agent_reports_is_named_with_its_node(
    site: Site, facts: AgentFacts, broken: tuple[str, str]
) -> None:
    site.agents.add("n2", facts)
    found = await site.problems()
    name, state = broken
    expected = {f"agents.{name}": state}
    if name == "helper":
        expected["agents.ebpf"] = "unknown"
    assert states(found) == expected
    assert "n2" in found[f"agents.{name}"].evidence
    assert "n1" not in found[f"agents.{name}"].evidence
    assert bool(found[f"agents.{name}"].remedy) is (state != "unknown")


async def test_an_older_agent_leaves_its_facts_unknown_never_ok(site: Site) -> None:
    site.agents.add("n2", AgentFacts(), agent_version="0.9")
    found = await site.problems()
    unknown = dict.fromkeys(
        (f"agents.{name}" for name in ("helper", "disk", "spool", "ebpf", "clock")), "unknown"
    )
    assert states(found) == unknown | {"agents.versions": "warning"}
    assert "n2: 0.9" in found["agents.versions"].evidence


async def test_versions_that_work_together_are_listed_and_ok(site: Site) -> None:
    site.upgrade("1.3.0")
    site.agents.add("n1", agent_version="1.4.1")
    site.agents.add("n2", agent_version="1.1.0")
    found = {each.id: each for each in (await site.examine()).checks}["agents.versions"]
    assert (found.state, found.evidence) == (
        CheckState.OK,
        "server 1.3.0; n2: 1.1.0; n1: 1.4.1",
    )


@pytest.mark.parametrize(
    ("agent", "remedy"),
    [("1.5.0", "Upgrade the servers first"), ("1.0.9", "Install the server's version")],
)
async def test_an_agent_too_far_from_the_server_is_named(
    site: Site, agent: str, remedy: str
) -> None:
    site.upgrade("1.3.0")
    site.agents.add("n1", agent_version="1.3.0")
    site.agents.add("n2", agent_version=agent)
    found = await site.problems()
    assert states(found) == {"agents.versions": "warning"}
    assert f"n2: {agent}" in found["agents.versions"].evidence
    assert "n1" not in found["agents.versions"].evidence
    assert remedy in found["agents.versions"].remedy


async def test_an_agent_that_names_no_version_is_unknown(site: Site) -> None:
    site.agents.add("n2", agent_version="")
    found = await site.problems()
    assert states(found) == {"agents.versions": "unknown"}
    assert "n2: not reported" in found["agents.versions"].evidence


@pytest.mark.parametrize(("version", "shown"), [("0.9", "s2: 0.9"), ("", "s2: older")])
async def test_servers_of_two_versions_are_an_upgrade_to_finish(
    site: Site, version: str, shown: str
) -> None:
    site.inspection.facts["replicas"] = (ReplicaFacts(id="s2", version=version),)
    found = await site.problems()
    assert states(found) == {"server.versions": "warning"}
    assert found["server.versions"].evidence == f"this server 1.0; {shown}"
    assert "Finish the upgrade" in found["server.versions"].remedy


async def test_nodes_without_and_with_lost_agents_are_folded(site: Site) -> None:
    site.scheduler.nodes = [
        Node(name=f"n{number}", state=NodeState.READY, slurm_state="idle") for number in range(1, 7)
    ]
    site.agents.add("n5", linked=False, condition=Condition.DOWN)
    site.agents.add("gone", linked=False, condition=Condition.DOWN)
    site.agents.add("odd1")
    found = await site.problems()
    assert states(found) == {
        "agents.missing": "warning",
        "agents.linked": "failed",
        "agents.foreign": "warning",
    }
    assert "n[3-4,6]" in found["agents.missing"].evidence
    assert "enrol 'n[3-4,6]'" in found["agents.missing"].remedy
    assert "down: n5" in found["agents.linked"].evidence
    assert "gone" not in found["agents.linked"].evidence
    assert "odd1" in found["agents.foreign"].evidence


@pytest.mark.spec("AUTH-9", "OPS-8")
async def test_refused_doubled_and_expiring_certificates_are_named(site: Site) -> None:
    now = site.clock.now()
    site.agents.add("n2", doubled=now.timestamp() - 60)
    site.inspection.facts["trust"] = (
        AgentTrust(node="n1", issued=now - timedelta(hours=23), expires=now + timedelta(hours=1)),
        AgentTrust(node="n3", quarantine="spoke as n1"),
        AgentTrust(node="n4", revoked="stolen (by admin)"),
    )
    found = await site.problems()
    assert states(found) == {
        "agents.certificates": "warning",
        "agents.refused": "failed",
        "agents.doubled": "failed",
    }
    assert "n3 (spoke as n1)" in found["agents.refused"].evidence
    assert "lattice admin reinstate n3" in found["agents.refused"].remedy
    assert "two machines use the certificate of n2" in found["agents.doubled"].evidence


@pytest.mark.spec("AUTH-8", "OPS-8")
async def test_a_revoked_node_gets_the_command_that_helps(site: Site) -> None:
    now = site.clock.now()
    issued, expires = now - timedelta(hours=1), now + timedelta(hours=23)
    own = AgentTrust(node="n1", issued=issued, expires=expires, revoked="stolen (by admin)")
    spire = AgentTrust(node="n4", revoked="stolen (by admin)")
    for trust, remedies in (
        ((own,), ("enrol n1",)),
        ((spire,), ("reinstate n4",)),
        ((own, spire), ("enrol n1", "reinstate n4")),
    ):
        site.inspection.facts["trust"] = trust
        remedy = (await site.problems())["agents.refused"].remedy
        commands = [each for each in ("enrol n1", "enrol n4", "reinstate n4") if each in remedy]
        assert commands == list(remedies)


async def test_an_agent_that_refuses_the_grant_is_named(site: Site) -> None:
    site.inspection.facts["echo n2"] = Unavailable("n2: no grant for this")
    found = await site.problems()
    assert states(found) == {"agents.echo": "failed"}
    assert "grant_key" in found["agents.echo"].remedy


async def test_without_agents_their_checks_are_off(site: Site) -> None:
    site.inspection.facts["trust"] = NotUsed("no agents are served")
    found = await site.examine()
    agents = [each for each in found.checks if each.group.value == "agents"]
    assert {each.state for each in agents} == {CheckState.OFF}


async def test_the_server_itself_is_examined(site: Site) -> None:
    facts = site.inspection.facts
    facts["process"] = replace(
        facts["process"],
        open_files=60_000,
        longest_pause_s=6.0,
        failures={"slurm": 4, "tls": 1},
        failed_s_ago={"slurm": 120.0, "tls": 7200.0},
    )
    reason = "the server s2 does not answer"
    facts["replicas"] = (ReplicaFacts(id="s2", reason=reason, version="1.0"),)
    facts["log_folder"] = replace(facts["log_folder"], free_bytes=2**20)
    found = await site.problems()
    assert states(found) == {
        "server.event_loop": "failed",
        "server.loops": "warning",
        "server.files": "warning",
        "server.log_disk": "failed",
        "server.replicas": "failed",
    }
    assert found["server.loops"].evidence == "slurm: 4 since the start, the last 2 min ago"


async def test_what_is_not_meant_for_production_is_a_warning(site: Site) -> None:
    site.inspection.facts["sign_in"] = SignInFacts(
        mode="hmac", encrypts=False, development_token=True
    )
    assert states(await site.problems()) == {
        "sign_in.mode": "warning",
        "sign_in.encrypted": "warning",
        "sign_in.development": "warning",
    }


@pytest.mark.spec("OPS-8")
async def test_what_the_gate_may_change_is_a_check_for_each_group(site: Site) -> None:
    found = {each.id: each for each in (await site.examine()).checks}
    for name in ("slurm.operate", "slurm.manage"):
        assert found[name].state is CheckState.OK
        assert found[name].evidence == "by the gate as slurm; nothing was changed to try"
    site.administration.allowed = frozenset({VerbGroup.TENANTS})
    found = {each.id: each for each in (await site.examine()).checks}
    assert found["slurm.operate"].state is CheckState.OFF
    assert "`lattice admin drain` is refused" in found["slurm.operate"].evidence
    assert "`--allow nodes`" in found["slurm.operate"].evidence
    assert "/etc/default/lattice-gate" in found["slurm.operate"].evidence
    assert found["slurm.manage"].state is CheckState.OK


@pytest.mark.spec("OPS-8")
async def test_a_site_with_sensitive_work_needs_the_gates_reservations(site: Site) -> None:
    assert "slurm.claim" not in {each.id for each in (await site.examine()).checks}
    site.views.views = (Vcluster("secret", VclusterKind.SENSITIVE, "batch"),)
    found = {each.id: each for each in (await site.examine()).checks}
    assert found["slurm.claim"].state is CheckState.OK
    site.administration.allowed = frozenset({VerbGroup.NODES, VerbGroup.TENANTS})
    problems = await site.problems()
    assert states(problems) == {"slurm.claim": "failed"}
    assert "`--allow claims`" in problems["slurm.claim"].remedy


@pytest.mark.spec("OPS-8")
async def test_a_gate_that_can_not_use_its_rights_is_named_with_what_to_do(site: Site) -> None:
    site.administration.fault = "this host has no account slurm"
    found = await site.problems()
    assert states(found) == {"slurm.operate": "failed", "slurm.manage": "failed"}
    assert found["slurm.manage"].evidence == "this host has no account slurm"
    assert "--administer-as" in found["slurm.manage"].remedy


@pytest.mark.parametrize(
    ("settings", "evidence"),
    [
        (SignInFacts(mode="issuer"), "by an identity provider"),
        (SignInFacts(mode="issuer", munge=True), "by an identity provider and by MUNGE"),
        (SignInFacts(mode="munge", munge=True), "by MUNGE"),
        (SignInFacts(mode="slurm", slurm_tokens=True), "by a Slurm token"),
        (
            SignInFacts(mode="issuer", munge=True, slurm_tokens=True),
            "by an identity provider and by MUNGE and by a Slurm token",
        ),
    ],
)
async def test_both_ways_to_sign_in_are_shown(
    site: Site, settings: SignInFacts, evidence: str
) -> None:
    site.inspection.facts["sign_in"] = settings
    found = {each.id: each for each in (await site.examine()).checks}
    assert found["sign_in.mode"].evidence == evidence


@pytest.mark.spec("OPS-8", "TRY-4")
async def test_a_slurmrestd_that_judges_no_tokens_is_a_failure(site: Site) -> None:
    site.inspection.facts["token_judge"] = Unavailable("slurmrestd answers without a token")
    found = await site.problems()
    assert states(found) == {"sign_in.slurm_tokens": "failed"}
    assert "rest_auth/jwt" in found["sign_in.slurm_tokens"].remedy
    site.inspection.facts["token_judge"] = "unix:/run/jwt"
    assert states(await site.problems()) == {}


def test_a_gate_that_fails_is_named_by_its_unit() -> None:
    unit = Path(__file__).parents[4] / "infra/systemd/lattice-gate.service"
    answers: tuple[Inspected[bool], ...] = (Inspected(reason="no answer"), Inspected(value=False))
    for found in answers:
        assert unit.stem in gate(found).remedy


async def test_a_defect_in_one_check_does_not_hide_the_others(site: Site) -> None:
    site.inspection.facts["schemas"] = RuntimeError("a defect")
    found = await site.problems()
    assert states(found) == {"slurm.schema": "failed"}
    assert found["slurm.schema"].evidence == "internal error: RuntimeError"


async def test_a_gate_that_is_not_there_is_off_and_one_that_is_away_failed(site: Site) -> None:
    site.without_gate = True
    assert states(await site.problems()) == {}
    found = {each.id: each for each in (await site.examine()).checks}
    assert found["server.gate"].state is CheckState.OFF


@pytest.mark.parametrize(
    ("times_s", "state"), [((1.5, 0.1), "ok"), ((1.5, 1.2), "warning"), ((0.1,), "ok")]
)
async def test_a_slow_answer_is_measured_again_alone(
    site: Site, times_s: tuple[float, ...], state: str
) -> None:
    pending = list(times_s)
    answer = site.inspection.accounting

    async def accounting() -> str:
        # By the examiner's own clock. The questions of the first round share it.
        site.clock.advance(pending.pop(0))
        return await answer()

    site.inspection.accounting = accounting  # type: ignore[method-assign]
    found = await site.examine()
    checks = {each.id: each for each in found.checks}
    assert checks["slurm.accounting"].state == state
    assert not pending
