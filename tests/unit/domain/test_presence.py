"""Presence: a record that follows its link, and never runs ahead of it or of the time."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.domain.node import AgentLink, Condition, HealthState, Node, NodeHealth, NodeState
from lattice.domain.presence import (
    BadRecord,
    Link,
    Presence,
    PresenceReading,
    Times,
    judged,
    lacks_of,
    linked,
    next_epoch,
    read_link,
    read_presence,
    unlinked,
    with_agent,
    written,
)
from lattice.domain.source import Source

TIMES = Times()


def link(epoch: int = 1, replica: str = "server-1") -> Link:
    return Link(node="n1", replica=replica, epoch=epoch, since=100.0, boot_id="b", instance="i")


LINKED = Presence(
    node="n1", epoch=3, linked=True, since=100.0, condition=Condition.READY, registered=50.0
)
LOST = replace(LINKED, linked=False, since=200.0)


@pytest.mark.spec("OPS-4")
def test_the_first_link_registers_the_node() -> None:
    record = linked(None, link(next_epoch(None)), 100.0)
    assert record is not None
    assert (record.epoch, record.linked, record.registered) == (1, True, 100.0)
    assert record.condition is Condition.READY


def test_a_link_of_an_older_epoch_changes_nothing() -> None:
    assert linked(LINKED, link(2), 300.0) is None
    assert linked(LINKED, link(3), 300.0) is None
    newer = linked(LINKED, link(4), 300.0)
    assert newer is not None
    assert (newer.epoch, newer.since, newer.registered) == (4, 300.0, 50.0)


def test_only_the_end_of_the_present_link_counts() -> None:
    assert unlinked(LINKED, 2, 300.0) is None
    assert unlinked(LOST, 3, 300.0) is None
    assert unlinked(None, 1, 300.0) is None
    assert unlinked(LINKED, 3, 300.0) == replace(LINKED, linked=False, since=300.0)


@pytest.mark.spec("OPS-4")
def test_a_vanished_key_starts_the_time_and_no_more() -> None:
    record = judged(LINKED, None, 10_000.0, TIMES)
    assert record is not None
    assert (record.linked, record.since, record.condition) == (False, 10_000.0, Condition.READY)


@pytest.mark.spec("OPS-4")
@pytest.mark.parametrize(
    ("gone_s", "sensitive", "condition"),
    [
        (29.9, False, None),
        (30.0, False, Condition.DEGRADED),
        (89.9, False, Condition.DEGRADED),
        (90.0, False, Condition.DOWN),
        (90.0, True, Condition.DEGRADED),
        (599.9, True, Condition.DEGRADED),
        (600.0, True, Condition.DOWN),
        (-5.0, False, None),
    ],
)
def test_time_judges(gone_s: float, sensitive: bool, condition: Condition | None) -> None:
    record = judged(LOST, None, LOST.since + gone_s, TIMES, sensitive=sensitive)
    assert (record.condition if record else None) is condition


@pytest.mark.spec("OPS-4")
def test_a_clock_that_runs_behind_takes_no_judgement_back() -> None:
    down = replace(LOST, condition=Condition.DOWN)
    assert judged(down, None, LOST.since + 31.0, TIMES) is None


@pytest.mark.spec("OPS-4")
@pytest.mark.parametrize("condition", list(Condition))
def test_a_new_link_makes_it_ready_at_once(condition: Condition) -> None:
    record = judged(replace(LOST, condition=condition), link(4), 201.0, TIMES)
    assert record is not None
    assert (record.linked, record.condition) == (True, Condition.READY)


def test_a_key_of_an_older_epoch_is_no_route() -> None:
    record = judged(LINKED, link(2), 300.0, TIMES)
    assert record == replace(LINKED, linked=False, since=300.0)


def test_the_same_link_put_again_after_its_lease_ran_out() -> None:
    record = judged(LOST, link(3), 210.0, TIMES)
    assert record is not None
    assert record.linked


WARNED = NodeHealth(HealthState.WARNING, ("7 GPUs instead of 8",))


@pytest.mark.spec("OPS-10")
def test_another_health_is_written_and_changes_nothing_else() -> None:
    record = linked(LINKED, replace(link(3), health=WARNED), 300.0)
    assert record == replace(LINKED, health=WARNED)
    assert judged(LINKED, replace(link(3), health=WARNED), 300.0, TIMES) == record


@pytest.mark.spec("OPS-10")
def test_the_same_health_again_is_not_written() -> None:
    warned = replace(LINKED, health=WARNED)
    assert linked(warned, replace(link(3), health=WARNED), 300.0) is None


@pytest.mark.spec("AUTH-9")
def test_two_machines_with_one_certificate_are_told_for_a_while() -> None:
    def told(record: Presence | None, now: float) -> str:
        assert record is not None
        source = Source(name="state", ok=True, as_of=datetime.fromtimestamp(now, UTC))
        return " ".join(lacks_of(record, PresenceReading({}, {}, source)))

    one = linked(None, replace(link(1), boot_id="one"), 1000.0)
    two = linked(one, replace(link(2), boot_id="two"), 1010.0)
    assert told(two, 1010.0) == ""  # it booted
    again = linked(two, replace(link(3), boot_id="one"), 1020.0)
    assert "two machines use the certificate of n1 by turns" in told(again, 1020.0)
    assert told(again, 1020.0 + 3600) == ""
    same = linked(again, replace(link(4), boot_id="one"), 1030.0)
    assert "two machines" in told(same, 1040.0)


def test_what_a_linked_agent_lacks_is_shown() -> None:
    node = Node(name="n1", state=NodeState.READY, slurm_state="idle")
    source = Source(name="state", ok=True)
    lacking = replace(LINKED, health=NodeHealth(lacks=("lattice-helper: gone",)))
    shown = with_agent(node, PresenceReading({"n1": lacking}, {}, source))
    assert shown.agent is not None
    assert shown.agent.lacks == ("lattice-helper: gone",)
    gone = replace(lacking, linked=False)
    hidden = with_agent(node, PresenceReading({"n1": gone}, {}, source))
    assert hidden.agent is not None
    assert hidden.agent.lacks == ()


@pytest.mark.spec("OPS-10")
def test_of_an_agent_that_is_gone_no_health_is_shown() -> None:
    node = Node(name="n1", state=NodeState.READY, slurm_state="idle")
    source = Source(name="state", ok=True)
    there = with_agent(node, PresenceReading({"n1": replace(LINKED, health=WARNED)}, {}, source))
    gone = with_agent(node, PresenceReading({"n1": replace(LOST, health=WARNED)}, {}, source))
    assert there.agent is not None
    assert (there.agent.health, there.agent.health_words) == (HealthState.WARNING, WARNED.words)
    assert gone.agent is not None
    assert (gone.agent.health, gone.agent.health_words) == (HealthState.UNKNOWN, ())


@given(st.builds(
    Presence,
    node=st.just("n1"), epoch=st.integers(1, 2**53), linked=st.booleans(),
    since=st.floats(0, 4e9), condition=st.sampled_from(Condition), boot_id=st.text(),
    agent_version=st.text(), registered=st.floats(0, 4e9),
    health=st.builds(NodeHealth, st.sampled_from(HealthState), st.lists(st.text()).map(tuple)),
))  # fmt: skip
def test_what_is_written_reads_back(record: Presence) -> None:
    assert read_presence("n1", written(record)) == record


def test_fields_of_later_versions_are_passed_over() -> None:
    later = json.loads(written(link())) | {"colour": "blue"}
    assert read_link("n1", json.dumps(later).encode()) == link()


@pytest.mark.parametrize(
    "change",
    [{"epoch": "3"}, {"epoch": 0}, {"linked": 1}, {"condition": "fine"}, {"node": "n2"},
     {"since": None}],
)  # fmt: skip
def test_a_record_that_is_off_in_anything_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(BadRecord):
        read_presence("n1", json.dumps(json.loads(written(LINKED)) | change).encode())


@pytest.mark.parametrize("value", [b"", b"[]", b"null", b"\xff", b"{" * 5000])
def test_what_is_no_record_is_refused(value: bytes) -> None:
    with pytest.raises(BadRecord):
        read_presence("n1", value)


READINGS = {
    "linked": LINKED,
    "lost a moment ago": LOST,
    "degraded": replace(LOST, condition=Condition.DEGRADED),
    "down": replace(LOST, condition=Condition.DOWN),
}


@pytest.mark.spec("OPS-4")
@pytest.mark.parametrize(
    ("slurm", "agent", "shown"),
    [
        (NodeState.READY, "linked", NodeState.READY),
        (NodeState.READY, "lost a moment ago", NodeState.READY),
        (NodeState.READY, "degraded", NodeState.DEGRADED),
        (NodeState.READY, "down", NodeState.DOWN),
        *(
            (slurm, agent, slurm)
            for slurm in NodeState
            if slurm is not NodeState.READY
            for agent in READINGS
        ),
    ],
)
def test_slurm_and_the_agent_together(slurm: NodeState, agent: str, shown: NodeState) -> None:
    node = Node(name="n1", state=slurm, slurm_state="x")
    links = {"n1": link(3)} if agent == "linked" else {}
    reading = PresenceReading({"n1": READINGS[agent]}, links, Source(name="state", ok=True))
    merged = with_agent(node, reading)
    assert merged.state is shown
    assert merged.agent is not None
    expected = AgentLink.LINKED if agent == "linked" else AgentLink.LOST
    assert merged.agent.link is expected
    assert merged.agent.replica == ("server-1" if agent == "linked" else "")


@pytest.mark.spec("OPS-4")
def test_a_cluster_without_agents_misses_none() -> None:
    node = Node(name="n1", state=NodeState.READY, slurm_state="idle")
    nothing = PresenceReading({}, {}, Source(name="state", ok=True))
    assert with_agent(node, nothing) is node
    others = PresenceReading({"n2": replace(LINKED, node="n2")}, {}, nothing.source)
    merged = with_agent(node, others)
    assert merged.state is NodeState.READY
    assert merged.agent is not None
    assert merged.agent.link is AgentLink.NEVER


@dataclass
class World:
    """The two keys with their revisions, a clock, and replicas that may hold an old look."""

    now: float = 1000.0
    revision: int = 1
    link: tuple[int, Link | None] = (0, None)
    record: tuple[int, Presence | None] = (0, None)
    looks: dict[str, tuple[tuple[int, Link | None], tuple[int, Presence | None]]] = field(
        default_factory=dict
    )
    unlinked_at: float | None = None

    def look(self, replica: str) -> None:
        self.looks[replica] = (self.link, self.record)

    def commit(
        self, replica: str, record: Presence | None, *, link: Link | str | None = "same"
    ) -> bool:
        """Compare-and-swap of both keys by what the replica saw last."""
        seen_link, seen_record = self.looks[replica]
        if (seen_link[0], seen_record[0]) != (self.link[0], self.record[0]):
            return False
        self.revision += 1
        if record is not None:
            self.record = (self.revision, record)
        if not isinstance(link, str):
            self._set_link(link)
        return True

    def _set_link(self, link: Link | None) -> None:
        if link is None and self.link[1] is not None:
            self.unlinked_at = self.now
        if link is not None:
            self.unlinked_at = None
        self.link = (self.revision if link else 0, link)

    def expire(self) -> None:
        """A replica died, and its lease with it."""
        self.revision += 1
        self._set_link(None)

    def act(self, act: str, replica: str, seconds: int) -> None:
        """One step of one replica, by what it saw last."""
        link_seen, record_seen = (each[1] for each in self.looks[replica])
        if act == "look":
            self.look(replica)
        elif act == "link":
            new = replace(link(next_epoch(record_seen), replica), since=self.now)
            self.commit(replica, linked(record_seen, new, self.now), link=new)
        elif act == "unlink" and link_seen is not None:
            self.commit(replica, unlinked(record_seen, link_seen.epoch, self.now), link=None)
        elif act == "judge" and record_seen is not None:
            self.judge(replica)
        elif act == "expire":
            self.expire()
        elif act == "wait":
            self.now += seconds

    def judge(self, replica: str) -> None:
        link_seen, record_seen = (each[1] for each in self.looks[replica])
        verdict = judged(record_seen, link_seen, self.now, TIMES) if record_seen else None
        if verdict is not None:
            self.commit(replica, verdict)

    def check(self, before: Presence | None) -> None:
        """What a change of the record may have been."""
        record = self.record[1]
        if record is None or record == before:
            return
        assert record.epoch >= (before.epoch if before else 1)
        if record.condition is not Condition.READY:
            assert self.unlinked_at is not None, "judged while a link stood"
            needed_s = 90.0 if record.condition is Condition.DOWN else 30.0
            assert self.now - self.unlinked_at >= needed_s


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["look", "link", "unlink", "judge", "expire", "wait"]),
        st.sampled_from(["server-1", "server-2"]),
        st.integers(1, 70),
    ),
    max_size=60,
)


@pytest.mark.spec("OPS-4")
@given(STEPS)
def test_any_interleaving_of_two_replicas_ends_right(steps: list[tuple[str, str, int]]) -> None:
    world = World()
    for replica in ("server-1", "server-2"):
        world.look(replica)
    for step in steps:
        before = world.record[1]
        world.act(*step)
        world.check(before)
    # Whoever looks and judges twice from here leaves the record as the link's key is.
    for _ in range(2):
        world.look("server-1")
        world.judge("server-1")
    if world.record[1] is not None:
        assert world.record[1].linked == (world.link[1] is not None)
