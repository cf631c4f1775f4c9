"""The gate's reservations: what it runs, what it leaves alone, and what it takes back."""

from __future__ import annotations

import pytest

from lattice.domain.nodeset import NodeSet
from lattice.domain.privileged import Outcome
from lattice.helper.account import VerbRefused
from lattice.helper.reservations import ClaimReservations

NAME = "lattice-claim-a"
NODES = NodeSet(["n1", "n2"])
OLDEST = (
    "ReservationName={name} StartTime=2026-11-19T10:18:07 EndTime=2036-11-16T10:18:07 "
    "Duration=3650-00:00:00 Nodes={nodes} NodeCnt=2 CoreCnt=16 Features=(null) "
    "PartitionName=(null) Flags={flags} TRES=cpu=16 Users={users} Groups=(null) "
    "Accounts={accounts} Licenses=(null) State=ACTIVE BurstBuffer=(null) Watts=n/a "
    "MaxStartDelay=(null)"
)
NEWEST = OLDEST.replace("Watts=n/a ", "").replace(
    "Users=", "AllowedPartitions=(null) QOS=(null) Users="
)


class FakeSlurm:
    """Programs of Slurm with a list of reservations, and of jobs."""

    def __init__(self, form: str) -> None:
        self.form = form
        self.lines: dict[str, str] = {}
        self.jobs = ""
        self.ran: list[tuple[str, ...]] = []
        self.refuses: dict[str, VerbRefused] = {}

    def add(self, name: str = NAME, extra: str = "", **changed: str) -> None:
        fields = {"users": "alice", "nodes": "n[1-2]", "flags": "SPEC_NODES", "accounts": "(null)"}
        self.lines[name] = self.form.format(name=name, **(fields | changed)) + extra

    def scontrol(self, *arguments: str, may_fail: bool = False) -> str:
        assert not may_fail
        if "show" in arguments:
            return "\n".join(self.lines.values()) or "No reservations in the system\n"
        self.ran.append(arguments)
        if refusal := self.refuses.get(arguments[0]):
            raise refusal
        if arguments[0] == "create":
            self.add()
        else:
            del self.lines[arguments[1].removeprefix("reservationname=")]
        return ""

    def squeue(self, *arguments: str) -> str:
        assert arguments[:5] == ("-h", "-a", "--local", "-w", "n[1-2]")
        if refusal := self.refuses.get("squeue"):
            raise refusal
        return self.jobs

    @property
    def reservations(self) -> ClaimReservations:
        return ClaimReservations(self.scontrol, self.squeue)

    def refused(self) -> VerbRefused:
        with pytest.raises(VerbRefused) as refusal:
            self.reservations.make(NAME, "alice", NODES)
        return refusal.value


@pytest.fixture(params=[OLDEST, NEWEST], ids=["22.05", "26.05"])
def slurm(request: pytest.FixtureRequest) -> FakeSlurm:
    return FakeSlurm(request.param)


@pytest.mark.threat("gate-changes")
def test_one_is_made_for_one_person_with_nothing_that_lets_others_in(slurm: FakeSlurm) -> None:
    slurm.jobs = "alice RUNNING 7\nbob PENDING 8\n"
    slurm.reservations.make(NAME, "alice", NODES)
    slurm.reservations.make(NAME, "alice", NODES)
    assert slurm.ran == [
        ("create", "reservation", f"reservationname={NAME}", "users=alice", "nodes=n[1-2]",
         "starttime=now-5minutes", "duration=3650-00:00:00"),
    ]  # fmt: skip


@pytest.mark.threat("gate-changes")
@pytest.mark.parametrize("state", ["RUNNING", "SUSPENDED", "COMPLETING", "CONFIGURING", "STOPPED"])
def test_jobs_of_others_on_the_nodes_refuse_it_and_it_is_taken_back(
    slurm: FakeSlurm, state: str
) -> None:
    slurm.jobs = f"alice RUNNING 7\nbob {state} 8\n"
    refusal = slurm.refused()
    assert refusal.answer.outcome is Outcome.FAILED
    assert refusal.answer.message.endswith(": 8")
    assert slurm.lines == {}
    # One that was there before this question stays: jobs may run in it.
    slurm.add()
    assert slurm.refused().answer.outcome is Outcome.FAILED
    assert list(slurm.lines) == [NAME]


def test_one_that_could_not_be_taken_back_is_unsure(slurm: FakeSlurm) -> None:
    slurm.jobs = "bob SUSPENDED 8\n"
    slurm.refuses["delete"] = VerbRefused(Outcome.FAILED, "Requested reservation is in use")
    refusal = slurm.refused()
    assert refusal.answer.outcome is Outcome.UNSURE
    assert NAME in refusal.answer.message


def test_it_is_taken_back_if_the_jobs_are_not_known(slurm: FakeSlurm) -> None:
    slurm.refuses["squeue"] = VerbRefused(Outcome.UNSURE, "squeue did not end within 30 s.")
    assert slurm.refused().answer.outcome is Outcome.UNSURE
    assert slurm.lines == {}


@pytest.mark.parametrize("users", ["bob", "alice,bob", "-bob", "(null)"])
def test_one_of_that_name_for_others_refuses_it(slurm: FakeSlurm, users: str) -> None:
    slurm.add(users=users)
    assert slurm.refused().answer.message == f"there is a reservation {NAME} for others"
    assert slurm.ran == []


def test_the_same_question_at_the_same_time_finds_it_made(slurm: FakeSlurm) -> None:
    overlaps = VerbRefused(Outcome.FAILED, "Requested reservation overlaps with another")

    def scontrol(*arguments: str, may_fail: bool = False) -> str:
        if arguments[0] == "create":
            slurm.add()
            raise overlaps
        return slurm.scontrol(*arguments, may_fail=may_fail)

    ClaimReservations(scontrol, slurm.squeue).make(NAME, "alice", NODES)
    slurm.lines.clear()
    slurm.refuses["create"] = overlaps
    assert slurm.refused() is overlaps


def test_removing_one_that_is_not_there_does_nothing(slurm: FakeSlurm) -> None:
    slurm.add("lattice-claim-b")
    slurm.reservations.remove(NAME)
    assert slurm.ran == []
    slurm.reservations.remove("lattice-claim-b")
    assert slurm.ran == [("delete", "reservationname=lattice-claim-b")]


@pytest.mark.threat("gate-changes")
@pytest.mark.parametrize(
    "changed",
    [
        {"users": "alice,bob"},
        {"users": "-bob"},
        {"users": "(null)"},
        {"accounts": "physics"},
        {"flags": "MAINT,SPEC_NODES"},
        {"flags": "FLEX,SPEC_NODES"},
        {"flags": "(null)"},
        {"nodes": "n[1-"},
    ],
    ids=str,
)
def test_one_that_others_changed_is_listed_without_a_user_and_left_alone(
    slurm: FakeSlurm, changed: dict[str, str]
) -> None:
    slurm.add(**changed)
    ((name, user, _),) = slurm.reservations.part_after("").found
    assert (name, user) == (NAME, "")
    with pytest.raises(VerbRefused, match="left alone"):
        slurm.reservations.remove(NAME)
    assert slurm.ran == []


@pytest.mark.threat("gate-changes")
def test_only_those_of_lattice_are_listed_whatever_a_comment_says(slurm: FakeSlurm) -> None:
    comment = " Comment=ReservationName=lattice-claim-z Users=bob Flags=x Nodes=n9"
    slurm.add(extra=comment)
    slurm.add("upgrade", extra=comment)
    slurm.add("lattice-claim-A")
    listed = slurm.reservations.part_after("")
    assert (listed.found, listed.more) == (((NAME, "alice", "n[1-2]"),), False)


def test_a_long_list_comes_in_parts(slurm: FakeSlurm) -> None:
    names = [f"lattice-claim-{each:04d}" for each in range(3000)]
    for name in reversed(names):
        slurm.add(name)
    found: list[str] = []
    parts = 0
    more = True
    while more:
        part = slurm.reservations.part_after(found[-1] if found else "")
        found += (name for name, _, _ in part.found)
        more = part.more
        parts += 1
        assert len(part.written()) < 60_000
    assert found == names
    assert parts > 1
