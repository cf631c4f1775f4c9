"""Acts on nodes: what goes from where, in whose name, and that nothing else gets through."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.access.actor import Actor, Role
from lattice.base.errors import (
    ConfigurationError,
    NotFound,
    PermissionRefused,
    Unavailable,
    UsageError,
)
from lattice.domain.node import Node, NodeState
from lattice.domain.operation import AllExcept, NodeAct
from lattice.features.nodes.model import LONGEST_REASON, NodeActs
from lattice.features.nodes.service.nodes import NodeOperations, signed_reason
from tests.fakes.cluster import ACCOUNTS, allocation
from tests.fakes.in_memory_operator import InMemoryNodeOperator
from tests.fakes.in_memory_scheduler import InMemoryScheduler
from tests.fakes.manual_clock import ManualClock

OLGA = Actor(sub="s-olga", user="olga", role=Role.OPERATOR)


@dataclass
class Site:
    """Three nodes, and whoever operates them."""

    scheduler: InMemoryScheduler = field(default_factory=lambda: InMemoryScheduler(ManualClock()))
    log: list[tuple[str, str, str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.scheduler.nodes = [
            Node(name=name, state=NodeState.READY, slurm_state="idle")
            for name in ("n1", "n2", "n3")
        ]
        self.scheduler.read()
        self.operator = InMemoryNodeOperator(self.scheduler)
        self.slept: list[float] = []
        self.operations = NodeOperations(self.scheduler, self.operator, self, sleep=self._sleep)

    async def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)

    def acted(self, act: str, target: str, sub: str, detail: str, **_: str) -> None:
        self.log.append((act, target, sub, detail))

    async def operate(self, act: str, names: str = "n1", reason: str = "bad DIMM") -> NodeActs:
        return await self.operations.operate(OLGA, NodeAct(act), names, reason)

    async def state(self, act: str, names: str = "n1", reason: str = "bad DIMM") -> str:
        return (await self.operate(act, names, reason)).nodes[0].state.value


@pytest.fixture
def site() -> Site:
    return Site()


@pytest.mark.spec("OPS-4")
async def test_ready_draining_drained_ready(site: Site) -> None:
    site.operator.busy.add("n1")
    assert await site.state("drain") == "draining"
    with pytest.raises(UsageError, match=r"n1 is still draining.*from drained only") as refused:
        await site.operate("undrain")
    assert "--wait" in (refused.value.hint or "")
    site.operator.work_ends("n1")
    assert await site.state("undrain") == "ready"
    assert [act for act, *_ in site.log] == ["drain", "undrain"]
    assert site.log[0] == ("drain", "n1", "s-olga", "olga: bad DIMM")


@pytest.mark.spec("OPS-4")
async def test_each_act_may_be_repeated_and_changes_nothing_twice(site: Site) -> None:
    for act, state in (
        ("drain", "drained"),
        ("undrain", "ready"),
        ("disable", "down"),
        ("enable", "ready"),
    ):
        first = (await site.operate(act)).nodes[0]
        again = (await site.operate(act, reason="another")).nodes[0]
        assert (first.changed, first.state.value) == (True, state)
        assert (again.changed, again.state.value) == (False, state)
    assert len(site.operator.acts) == 4


@pytest.mark.spec("OPS-4")
async def test_down_and_drained_are_told_apart(site: Site) -> None:
    await site.operate("disable")
    with pytest.raises(UsageError, match="n1 is down, not drained") as refused:
        await site.operate("undrain")
    assert "lattice admin enable n1" in (refused.value.hint or "")
    await site.operate("enable")
    await site.operate("drain")
    assert await site.state("enable") == "ready", "a node disabled may be drained by now"


@pytest.mark.spec("OPS-4")
async def test_a_node_put_back_is_given_time_to_answer(site: Site) -> None:
    await site.operate("disable")
    site.operator.answers_after = 3
    assert await site.state("enable") == "ready"
    assert site.slept == [0.5, 0.5, 0.5]
    await site.operate("disable")
    site.operator.answers_after = 100
    assert await site.state("enable") == "unknown"


@pytest.mark.spec("OPS-4")
async def test_all_nodes_of_a_set_or_none(site: Site) -> None:
    site.operator.busy.add("n2")
    done = await site.operate("drain", "n[1-3]")
    assert [each.state.value for each in done.nodes] == ["drained", "draining", "drained"]
    assert site.operator.acts == [("drain", "n[1-3]", "olga: bad DIMM")]
    with pytest.raises(UsageError, match="n2 is still draining"):
        await site.operate("undrain", "n[1-3]")
    assert len(site.operator.acts) == 1
    site.operator.work_ends("n2")
    await site.operate("undrain", "n1,n3")
    last = await site.operate("undrain", "n[1-3]")
    assert [each.changed for each in last.nodes] == [False, True, False]


@pytest.mark.parametrize("names", ["n9", "n[1-4]", "ALL", "n1,nx"])
async def test_only_nodes_that_exist_reach_slurm(site: Site, names: str) -> None:
    with pytest.raises((NotFound, UsageError)):
        await site.operate("drain", names)
    assert site.operator.acts == []


@pytest.mark.parametrize("names", ["", "n[", "n[1-99999999999]", "n1 state=resume", "n[1-2]]"])
async def test_what_names_no_nodes_is_refused(site: Site, names: str) -> None:
    with pytest.raises((UsageError, NotFound)):
        await site.operate("drain", names)
    assert site.operator.acts == []


@pytest.mark.spec("OPS-4")
async def test_a_reason_is_needed_where_something_is_taken_away(site: Site) -> None:
    for act in ("drain", "disable"):
        with pytest.raises(UsageError, match="takes a reason"):
            await site.operate(act, reason="  ")
    await site.operate("drain")
    assert await site.state("drain", reason="") == "drained", "nothing is left to give reasons for"
    assert await site.state("undrain", reason="") == "ready"


@given(user=st.text(max_size=100), reason=st.text(max_size=500))
def test_reasons_are_inert_bounded_and_signed(user: str, reason: str) -> None:
    words = signed_reason(Actor(sub="s", user=user), reason)
    assert words.isprintable()
    assert len(words) <= LONGEST_REASON
    assert ": " in words


def test_a_reason_of_letters_without_width_is_bounded_too() -> None:
    assert len(signed_reason(Actor(sub="s", user=""), "0\u0300" * 200)) <= LONGEST_REASON


def test_a_hostile_reason_can_not_pass_for_somebody_elses() -> None:
    words = signed_reason(OLGA, "\r\x1b[2Kroot: all is well\nNodeName=n2 State=DOWN")
    assert words.startswith("olga: ")
    assert "\x1b" not in words
    assert "\n" not in words


@pytest.mark.spec("OPS-4")
async def test_slurm_that_refuses_or_is_away_is_told_and_written_down(site: Site) -> None:
    site.operator.refuses = True
    with pytest.raises(ConfigurationError):
        await site.operate("drain")
    assert site.log[-1][0] == "drain failed"
    site.scheduler.down = True
    with pytest.raises(Unavailable):
        await site.operate("drain")


BIOLOGIST = Actor(sub="s-carol", user="carol", role=Role.TENANT_ADMIN, tenant="biology")


@pytest.fixture
def shared() -> Site:
    """n1 is biology's alone, n2 is everybody's, n3 is in a partition of each kind."""
    site = Site()
    site.scheduler.accounts = ACCOUNTS
    site.scheduler.nodes = [
        Node(name=name, state=NodeState.READY, slurm_state="idle", partitions=partitions)
        for name, partitions in (("n1", ("bio",)), ("n2", ("all",)), ("n3", ("bio", "mixed")))
    ]
    site.scheduler.read()
    site.operator.partitions = {
        "bio": frozenset({"biology", "genomics"}),
        "all": None,
        "mixed": frozenset({"genomics", "theory"}),
    }
    return site


@pytest.mark.spec("AUTH-4", "OPS-4")
async def test_a_tenant_admin_drains_and_undrains_what_serves_no_other_tenant(
    shared: Site,
) -> None:
    for act, state in (("drain", "drained"), ("undrain", "ready")):
        done = await shared.operations.operate(BIOLOGIST, NodeAct(act), "n1", "wet")
        assert done.nodes[0].state.value == state
    assert [act for act, *_ in shared.log] == ["drain", "undrain"]


@pytest.mark.spec("AUTH-4", "OPS-4")
@pytest.mark.threat("tenant-drain")
@pytest.mark.parametrize("act", ["drain", "undrain"])
@pytest.mark.parametrize(
    ("names", "why"),
    [
        ("n2", "the partition all of n2 admits every account"),
        ("n3", "the partition mixed of n3 admits accounts of other tenants"),
        ("n[1-2]", "the partition all of n2 admits every account"),
    ],
)
async def test_a_tenant_admin_leaves_alone_what_others_use(
    shared: Site, act: str, names: str, why: str
) -> None:
    """Attack 42: it is refused, with the reason, and written down."""
    with pytest.raises(PermissionRefused) as refused:
        await shared.operations.operate(BIOLOGIST, NodeAct(act), names, "wet")
    assert refused.value.message == f"A tenant admin can't {act} {names}: {why}."
    assert shared.operator.acts == []
    assert shared.log == [(f"{act} refused", names, "s-carol", why)]


@pytest.mark.spec("AUTH-4", "OPS-4")
@pytest.mark.threat("tenant-drain")
async def test_a_partition_that_denies_all_other_tenants_serves_one_tenant(shared: Site) -> None:
    others = frozenset(name for name in ACCOUNTS.accounts if ACCOUNTS.tenant_of(name) != "biology")
    shared.operator.partitions["bio"] = AllExcept(others)
    done = await shared.operations.operate(BIOLOGIST, NodeAct.DRAIN, "n1", "wet")
    assert done.nodes[0].changed
    shared.operator.partitions["bio"] = AllExcept(others - {min(others)})
    with pytest.raises(PermissionRefused, match="admits accounts of other tenants"):
        await shared.operations.operate(BIOLOGIST, NodeAct.UNDRAIN, "n1", "")


@pytest.mark.spec("AUTH-4")
@pytest.mark.threat("tenant-drain")
async def test_work_of_another_tenant_on_the_node_counts_too(shared: Site) -> None:
    shared.scheduler.allocations = [allocation(1, "bob", "genomics", nodes="n1")]
    shared.scheduler.read()
    await shared.operations.operate(BIOLOGIST, NodeAct.DRAIN, "n1", "wet")
    await shared.operations.operate(BIOLOGIST, NodeAct.UNDRAIN, "n1", "")
    shared.scheduler.allocations = [allocation(2, "dave", "theory", nodes="n[1-2]")]
    shared.scheduler.read()
    with pytest.raises(PermissionRefused, match="work of another tenant is on n1"):
        await shared.operations.operate(BIOLOGIST, NodeAct.DRAIN, "n1", "wet")


@pytest.mark.spec("AUTH-4")
@pytest.mark.threat("tenant-drain")
@pytest.mark.parametrize("tenant", ["", "genomics", "nowhere"])
async def test_one_who_governs_no_tenant_drains_nothing(shared: Site, tenant: str) -> None:
    stranger = Actor(sub="s-x", user="x", role=Role.TENANT_ADMIN, tenant=tenant)
    with pytest.raises(PermissionRefused, match="no tenant that you govern"):
        await shared.operations.operate(stranger, NodeAct.DRAIN, "n1", "wet")


@pytest.mark.spec("AUTH-4")
@pytest.mark.threat("tenant-drain")
async def test_what_can_not_be_told_is_another_tenants(shared: Site) -> None:
    shared.operator.partitions = {}
    with pytest.raises(PermissionRefused, match="admits every account"):
        await shared.operations.operate(BIOLOGIST, NodeAct.DRAIN, "n1", "wet")
    shared.scheduler.nodes = [Node(name="n1", state=NodeState.READY, slurm_state="idle")]
    shared.scheduler.read()
    with pytest.raises(PermissionRefused, match="belongs to no partition"):
        await shared.operations.operate(BIOLOGIST, NodeAct.DRAIN, "n1", "wet")


@pytest.mark.spec("AUTH-4")
async def test_an_operator_drains_whatever_it_serves(shared: Site) -> None:
    done = await shared.operations.operate(OLGA, NodeAct.DRAIN, "n[1-3]", "BIOS")
    assert {each.state.value for each in done.nodes} == {"drained"}
