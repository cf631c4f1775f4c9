"""What the gate is asked to change: each field closed, so that no text can mean another thing."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.domain.administration import (
    LONGEST_REASON,
    MOST_NODES,
    GateRights,
    ListReservations,
    MakeReservation,
    NodeChange,
    NodeQuestion,
    RemoveReservation,
    ReservationList,
    TenantAct,
    TenantQuestion,
    VerbGroup,
    in_parts,
    read_reservation_list,
    read_rights,
)

DRAIN = NodeQuestion(
    cluster="lab", change=NodeChange.DRAIN, nodes=("n1", "gpu-a.site"), reason="olga: bad 'DIMM'"
)
CREATE = TenantQuestion(
    cluster="lab", act=TenantAct.CREATE, name="physics", max_nodes=4, max_gpus=None, max_jobs=None
)

RESERVE = MakeReservation(
    cluster="lab", name="lattice-claim-a-1", user="alice", nodes=("n1", "gpu-a.site")
)
RELEASE = RemoveReservation(cluster="lab", name="lattice-claim-a-1")
LIST = ListReservations(cluster="lab", after="")


def test_sound_questions_have_no_fault() -> None:
    assert DRAIN.fault() == CREATE.fault() == ""
    assert replace(DRAIN, change=NodeChange.RESUME, reason="").fault() == ""
    assert replace(CREATE, act=TenantAct.UPDATE, max_jobs=-1).fault() == ""
    assert DRAIN.summary() == "drain gpu-a.site,n1"
    assert CREATE.summary() == "create physics max_nodes=4"
    assert RESERVE.fault() == RELEASE.fault() == LIST.fault() == ""
    assert RESERVE.summary() == "reserve lattice-claim-a-1 alice gpu-a.site,n1"
    assert RELEASE.summary() == "release lattice-claim-a-1"


@pytest.mark.spec("OPS-4", "AUTH-9")
@pytest.mark.threat("gate-changes")
@pytest.mark.parametrize(
    "name",
    [
        "", "ALL", "all", "aLL", "localhost", "-n1", "n1,n2", "n[1-3]", "n1 state=down", "n1\n",
        "n1\nNodeName=n2", "n1\0", "../n1", "n1;reboot", "$(reboot)", "n*", "n1=x", "nö",
        "n1\u2028", "n" * 129,
    ],
)  # fmt: skip
def test_a_name_is_that_of_one_node(name: str) -> None:
    for nodes in ((name,), ("n1", name)):
        assert replace(DRAIN, nodes=nodes).fault()
        assert replace(RESERVE, nodes=nodes).fault()


@pytest.mark.threat("gate-changes")
def test_nodes_are_some_and_each_once() -> None:
    assert replace(DRAIN, nodes=()).fault()
    assert replace(DRAIN, nodes=("n1", "n1")).fault()
    many = tuple(f"n{each}" for each in range(MOST_NODES + 1))
    assert replace(DRAIN, nodes=many).fault()
    parts = list(in_parts(many))
    assert [len(each) for each in parts] == [MOST_NODES, 1]
    assert all(replace(DRAIN, nodes=each).fault() == "" for each in parts)


@pytest.mark.spec("OPS-4")
@pytest.mark.threat("gate-changes")
@pytest.mark.parametrize(
    "reason",
    ["", " ", "two\nNodeName=n1 State=DOWN", "\x1b]0;x\x07", "a\tb", "\u202egnp.exe", "a\0b",
     "a\x85b", "r" * (LONGEST_REASON + 1), "\ud800"],
)  # fmt: skip
def test_a_reason_is_one_short_printable_line(reason: str) -> None:
    assert replace(DRAIN, reason=reason).fault()
    assert replace(DRAIN, change=NodeChange.DISABLE, reason=reason).fault()


def test_putting_back_takes_no_reason() -> None:
    assert replace(DRAIN, change=NodeChange.RESUME).fault()


@pytest.mark.spec("OPS-5")
@pytest.mark.threat("gate-changes")
@pytest.mark.parametrize(
    "name",
    [
        "",
        "root",
        "Root",
        "-i",
        ".x",
        "a,b",
        "a b",
        "a=b",
        "a\n",
        "../a",
        "a+",
        "set",
        "ä",
        "a" * 65,
    ],
)
def test_a_tenant_has_one_plain_name(name: str) -> None:
    # `set` is a name like others: each argument of sacctmgr with a name has its key before it.
    expected = name == "set"
    assert (replace(CREATE, name=name).fault() == "") is expected


@pytest.mark.threat("gate-changes")
@pytest.mark.parametrize("limit", [-2, 10_000_001, -(10**20), 10**20])
def test_limits_are_numbers_within_bounds(limit: int) -> None:
    for name in ("max_nodes", "max_gpus", "max_jobs"):
        assert replace(CREATE, **{name: limit}).fault()


def test_an_update_changes_something() -> None:
    assert replace(CREATE, act=TenantAct.UPDATE, max_nodes=None).fault()
    assert replace(CREATE, max_nodes=None).fault() == ""


@pytest.mark.threat("gate-changes")
@pytest.mark.parametrize("cluster", ["", "-M", "a,b", "a b", "a\n", "all,lab", "x" * 129])
def test_a_cluster_has_one_plain_name(cluster: str) -> None:
    for question in (DRAIN, CREATE, RESERVE, RELEASE, LIST):
        assert replace(question, cluster=cluster).fault()


@pytest.mark.threat("gate-changes")
@pytest.mark.parametrize(
    "name",
    ["", "lattice-claim-", "lattice-claim", "maintenance", "lattice-claim-A", "lattice-claim-a,b",
     "lattice-claim-a b", "lattice-claim-a\n", "xlattice-claim-a", "lattice-claim-a=b",
     "lattice-claim-ä", "lattice-claim-../a", "-lattice-claim-a", "lattice-claim-" + "a" * 65],
)  # fmt: skip
def test_a_reservation_is_named_as_those_of_lattice(name: str) -> None:
    assert replace(RESERVE, name=name).fault()
    assert replace(RELEASE, name=name).fault()
    assert bool(replace(LIST, after=name).fault()) is bool(name)


@pytest.mark.threat("gate-changes")
@pytest.mark.parametrize(
    "user", ["", "root", "-alice", "alice,bob", "alice nodes=ALL", "alice\n", "alice+bob", "älice",
             "a" * 65, "1001", "alice@site"],
)  # fmt: skip
def test_a_reservation_is_for_one_person(user: str) -> None:
    assert replace(RESERVE, user=user).fault()


@pytest.mark.threat("gate-changes")
def test_a_reservation_has_as_many_nodes_as_fit_in_an_answer() -> None:
    nodes = tuple(f"n{each:0127d}" for each in range(MOST_NODES))
    assert replace(RESERVE, nodes=nodes).fault()
    assert replace(RESERVE, nodes=()).fault()
    assert replace(RESERVE, nodes=("n1", "n1")).fault()


def test_a_list_of_reservations_reads_back_whole() -> None:
    listed = ReservationList(found=(("lattice-claim-a", "", "n[1-2]"),), more=True)
    assert read_reservation_list(listed.written()) == listed
    for text in ("", "{}", '{"found": [["a", "b"]], "more": false}'):
        with pytest.raises(ValueError):  # noqa: PT011 - any
            read_reservation_list(text)


@pytest.mark.threat("gate-changes")
@given(st.text(max_size=20), st.text(max_size=20))
def test_what_passes_has_no_character_that_slurm_or_a_shell_reads(node: str, tenant: str) -> None:
    for text, passes in (
        (node, replace(DRAIN, nodes=(node,)).fault() == ""),
        (tenant, replace(CREATE, name=tenant).fault() == ""),
    ):
        if passes:
            assert text.isascii()
            assert not set(text) & set(" ,=[]+*/;$`\"'\\\n\t\0")
            assert not text.startswith(("-", "."))


def test_rights_read_back_whole() -> None:
    rights = GateRights(groups=(VerbGroup.NODES,), user="slurm", fault="")
    assert read_rights(rights.written()) == rights
    for text in ("", "{}", rights.written().replace("nodes", "everything")):
        with pytest.raises(ValueError):  # noqa: PT011 - any
            read_rights(text)
