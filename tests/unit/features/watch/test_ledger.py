"""What a reader is told of alerts and nodes: each change once, and nothing fine by silence."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.base.errors import UsageError
from lattice.domain.alert import AlertRule, Phase, Severity
from lattice.domain.node_snapshot import SETTLED_S, NodeUnreachable
from lattice.features.watch.model import NODE_LOST, NodeWord, WatchAlert, WatchNode, WatchRecord
from lattice.features.watch.service.cursor import WatchCursor, read_cursor, write_cursor
from lattice.features.watch.service.ledger import LOST_AFTER_S, AlertLedger
from tests.fakes.node_looks import BEGUN, CARD, alert, sight, snapshot

NOW = BEGUN + 100
SESSION = "0123456789abcdef" * 2


def told(ledger: AlertLedger) -> list[WatchRecord]:
    return ledger.drained(NOW)


def brief(ledger: AlertLedger) -> list[tuple[str, str, str]]:
    """Node, what, and how it is."""
    found = []
    for each in told(ledger):
        assert isinstance(each, WatchAlert | WatchNode)
        if isinstance(each, WatchAlert):
            found.append((each.node, each.rule, each.phase.value))
        else:
            found.append((each.node, "node", each.word.value))
    return found


def look(ledger: AlertLedger, *firing: object, at: float = NOW, fresh: bool = False) -> None:
    before = None if fresh else snapshot(at - BEGUN - 30)
    alerts = tuple(firing)
    ledger.measured(sight("n1", snapshot(at - BEGUN), before, firing=alerts), at)  # type: ignore[arg-type]


def silence(reason: str = "its link is lost", since: float | None = NOW) -> NodeUnreachable:
    return NodeUnreachable("n1", reason, since)


@pytest.mark.spec("WATCH-2")
def test_an_alert_is_told_when_it_fires_and_when_it_clears() -> None:
    ledger = AlertLedger()
    ledger.alert("n1", alert())
    look(ledger, alert())
    ledger.alert("n1", alert())
    ledger.alert("n1", alert(phase=Phase.CLEARED, time=BEGUN + 240, text="It works."))
    look(ledger)
    fired, cleared = told(ledger)
    assert isinstance(fired, WatchAlert)
    assert isinstance(cleared, WatchAlert)
    assert (fired.phase, fired.value, fired.bound) == (Phase.FIRING, 3, 10)
    assert (cleared.phase, cleared.lasted_s, cleared.words) == (Phase.CLEARED, 240, "It works.")


@pytest.mark.spec("WATCH-2")
def test_who_begins_to_look_is_told_what_stands() -> None:
    ledger = AlertLedger()
    look(ledger, alert(), alert(rule=AlertRule.XID, severity=Severity.CRITICAL))
    assert brief(ledger) == [("n1", "gpu_idle", "firing"), ("n1", "xid", "firing")]


@pytest.mark.spec("WATCH-2")
def test_what_the_node_does_not_say_any_more_has_cleared() -> None:
    ledger = AlertLedger()
    look(ledger, alert())
    told(ledger)
    look(ledger)
    assert brief(ledger) == [("n1", "gpu_idle", "cleared")]


@pytest.mark.spec("WATCH-1", "WATCH-2")
def test_a_node_that_stops_answering_makes_its_alerts_unknown_at_once() -> None:
    ledger = AlertLedger()
    ledger.alert("n1", alert())
    told(ledger)
    ledger.silent(silence(), NOW)
    ledger.silent(silence(), NOW)
    assert brief(ledger) == [("n1", "gpu_idle", "unknown"), ("n1", "node", "stale")]
    assert ledger.stale == {"n1"}


@pytest.mark.spec("WATCH-1")
def test_a_node_that_stays_silent_is_lost_once_and_critically() -> None:
    ledger = AlertLedger()
    look(ledger, at=NOW - 25)
    ledger.silent(silence(since=NOW - 25), NOW)
    assert brief(ledger) == [("n1", "node", "stale")]
    ledger.advance(NOW + LOST_AFTER_S - 1)
    assert told(ledger) == [], "what it told last may be old without it being lost"
    ledger.advance(NOW + LOST_AFTER_S)
    ledger.advance(NOW + LOST_AFTER_S + 60)
    (lost,) = told(ledger)
    assert isinstance(lost, WatchAlert)
    assert (lost.rule, lost.severity, lost.phase) == (NODE_LOST, Severity.CRITICAL, Phase.FIRING)
    assert "n1 is lost (its link is lost)" in lost.words
    ledger.back("n1", 65.0, NOW + 65)
    back, cleared = told(ledger)
    assert isinstance(back, WatchNode)
    assert isinstance(cleared, WatchAlert)
    assert (back.word, back.seconds) == (NodeWord.BACK, 65)
    assert (cleared.rule, cleared.phase, cleared.lasted_s) == (NODE_LOST, Phase.CLEARED, 90)


@pytest.mark.spec("WATCH-1")
def test_a_job_begins_before_its_agent_knows_of_it() -> None:
    ledger = AlertLedger()
    ledger.silent(silence("it does not know this job", since=None), NOW)
    ledger.advance(NOW + 1)
    look(ledger, at=NOW + 2, fresh=True)
    assert told(ledger) == []


@pytest.mark.spec("WATCH-1")
def test_a_node_that_was_never_heard_is_told_of_too() -> None:
    ledger = AlertLedger()
    ledger.silent(silence(since=None), NOW)
    ledger.advance(NOW + 5)
    assert brief(ledger) == [("n1", "node", "stale")]
    ledger.advance(NOW + LOST_AFTER_S)
    assert brief(ledger) == [("n1", NODE_LOST, "firing")]


@pytest.mark.spec("WATCH-2")
def test_who_has_begun_anew_can_not_clear_what_it_never_saw() -> None:
    ledger = AlertLedger()
    ledger.alert("n1", alert())
    look(ledger, fresh=True)
    told(ledger)
    ledger.alert("n1", alert(phase=Phase.CLEARED, time=NOW))
    assert told(ledger) == []
    ledger.alert("n1", alert(phase=Phase.CLEARED, time=NOW + SETTLED_S))
    assert brief(ledger) == [("n1", "gpu_idle", "cleared")]


@pytest.mark.spec("WATCH-1")
def test_an_agent_that_restarts_soon_is_not_a_node_lost() -> None:
    ledger = AlertLedger()
    look(ledger)
    ledger.silent(silence(), NOW)
    look(ledger, at=NOW + 4, fresh=True)
    ledger.advance(NOW + 60)
    assert brief(ledger) == [("n1", "node", "stale"), ("n1", "node", "back")]


@pytest.mark.spec("WATCH-2")
def test_a_judge_that_begins_anew_does_not_clear_what_stood() -> None:
    """An agent that restarted has forgotten: that it says nothing does not mean all is well."""
    ledger = AlertLedger()
    ledger.alert("n1", alert())
    told(ledger)
    look(ledger, fresh=True)
    assert brief(ledger) == [("n1", "gpu_idle", "unknown")]
    look(ledger, at=NOW + SETTLED_S - 1)
    assert brief(ledger) == []
    look(ledger, at=NOW + SETTLED_S)
    assert brief(ledger) == [("n1", "gpu_idle", "cleared")]


@pytest.mark.spec("WATCH-2")
def test_a_judge_that_begins_anew_and_finds_it_again_says_so_with_the_first_since() -> None:
    ledger = AlertLedger()
    ledger.alert("n1", alert())
    look(ledger, fresh=True)
    told(ledger)
    ledger.alert("n1", alert(since=BEGUN + 120, time=BEGUN + 181))
    (again,) = told(ledger)
    assert isinstance(again, WatchAlert)
    assert (again.phase, again.since.timestamp()) == (Phase.FIRING, BEGUN)


def anew(ledger: AlertLedger, *firing: object, at: float, judged: float) -> None:
    """A look by a judge that says since when it looks."""
    seen = sight("n1", snapshot(at - BEGUN), snapshot(at - BEGUN - 30), firing=tuple(firing))  # type: ignore[arg-type]
    ledger.measured(replace(seen, judged_since=judged), at)


@pytest.mark.spec("WATCH-2")
def test_a_reconnect_clears_nothing_that_a_new_judge_can_not_know() -> None:
    """The agent was begun anew while the node was not heard, and has looked twice since."""
    ledger = AlertLedger()
    ledger.alert("n1", alert())
    ledger.silent(silence(), NOW)
    told(ledger)
    ledger.back("n1", 40.0, NOW + 40)
    anew(ledger, at=NOW + 60, judged=NOW + 10)
    assert brief(ledger) == [("n1", "node", "back")], "it is unknown already, and stays so"
    anew(ledger, at=NOW + 10 + SETTLED_S - 1, judged=NOW + 10)
    assert brief(ledger) == []
    anew(ledger, at=NOW + 10 + SETTLED_S, judged=NOW + 10)
    assert brief(ledger) == [("n1", "gpu_idle", "cleared")]


@pytest.mark.spec("WATCH-2")
def test_a_judge_that_was_there_all_the_time_is_believed_at_once() -> None:
    ledger = AlertLedger()
    ledger.alert("n1", alert())
    ledger.silent(silence(), NOW)
    ledger.back("n1", 40.0, NOW + 40)
    told(ledger)
    anew(ledger, at=NOW + 60, judged=BEGUN - 500)
    assert brief(ledger) == [("n1", "gpu_idle", "cleared")]


@pytest.mark.spec("WATCH-2")
def test_a_judge_as_young_as_its_job_is_believed_on_what_it_saw_begin() -> None:
    ledger = AlertLedger()
    anew(ledger, at=BEGUN + 5, judged=BEGUN)
    ledger.alert("n1", alert(since=BEGUN + 10, time=BEGUN + 20))
    told(ledger)
    anew(ledger, at=BEGUN + 50, judged=BEGUN)
    assert brief(ledger) == [("n1", "gpu_idle", "cleared")]


def test_all_that_is_told_at_once_says_that_more_follows() -> None:
    ledger = AlertLedger()
    for node in ("n1", "n2", "n3"):
        ledger.alert(node, alert())
    assert [each.follows for each in told(ledger)] == [True, True, False]  # type: ignore[union-attr]
    ledger.alert("n4", alert())
    assert [each.follows for each in told(ledger)] == [False]  # type: ignore[union-attr]


@pytest.mark.spec("WATCH-2")
def test_a_clear_of_what_never_fired_is_no_news() -> None:
    ledger = AlertLedger()
    ledger.alert("n1", alert(phase=Phase.CLEARED))
    assert told(ledger) == []


@pytest.mark.spec("WATCH-2")
def test_a_job_that_is_done_on_a_node_leaves_nothing_standing() -> None:
    ledger = AlertLedger()
    ledger.alert("n1", alert())
    told(ledger)
    ledger.over("n1", NOW)
    assert brief(ledger) == [("n1", "node", "over"), ("n1", "gpu_idle", "cleared")]
    assert ledger.known == ()


class TestAnotherReplica:
    def resumed(self, ledger: AlertLedger) -> AlertLedger:
        cursor = write_cursor(WatchCursor(SESSION, alerts=ledger.known))
        return AlertLedger(read_cursor(cursor).alerts)

    @pytest.mark.spec("WATCH-2")
    def test_tells_of_nothing_twice(self) -> None:
        ledger = AlertLedger()
        ledger.alert("n1", alert())
        other = self.resumed(ledger)
        look(other, alert())
        assert told(other) == []

    @pytest.mark.spec("WATCH-2")
    def test_tells_of_the_end_of_what_it_did_not_see_begin(self) -> None:
        ledger = AlertLedger()
        ledger.alert("n1", alert())
        other = self.resumed(ledger)
        look(other)
        (cleared,) = told(other)
        assert isinstance(cleared, WatchAlert)
        assert (cleared.phase, cleared.since.timestamp()) == (Phase.CLEARED, BEGUN)

    @pytest.mark.spec("WATCH-1")
    def test_does_not_lose_a_node_again(self) -> None:
        ledger = AlertLedger()
        ledger.silent(silence(), NOW)
        ledger.advance(NOW + LOST_AFTER_S)
        other = self.resumed(ledger)
        other.silent(silence(), NOW + 30)
        other.advance(NOW + 90)
        assert told(other) == []
        look(other, at=NOW + 100)
        assert brief(other) == [("n1", "node", "back"), ("n1", NODE_LOST, "cleared")]

    @pytest.mark.spec("WATCH-2")
    def test_an_unknown_one_stays_so(self) -> None:
        ledger = AlertLedger()
        ledger.alert("n1", alert())
        ledger.silent(silence(), NOW)
        other = self.resumed(ledger)
        look(other, alert())
        assert brief(other) == [("n1", "gpu_idle", "firing")], "it fires again, as it would have"


@pytest.mark.spec("WATCH-2")
@given(
    st.lists(
        st.one_of(
            st.sampled_from(["fire", "clear", "unknown", "silent", "back", "over", "resume"]),
            st.tuples(st.just("look"), st.booleans(), st.booleans()),
            st.tuples(st.just("pass"), st.floats(0, 200)),
        ),
        max_size=40,
    )
)
def test_of_one_alert_phases_follow_each_other_whatever_happens(story: list[object]) -> None:
    follows = {
        None: {Phase.FIRING, Phase.UNKNOWN},
        Phase.FIRING: {Phase.CLEARED, Phase.UNKNOWN},
        Phase.UNKNOWN: {Phase.FIRING, Phase.CLEARED},
        Phase.CLEARED: {Phase.FIRING, Phase.UNKNOWN},
    }
    ledger, now = AlertLedger(), NOW
    last: dict[tuple[str, str, str], Phase] = {}
    for step in story:
        if step == "resume":
            ledger = AlertLedger(read_cursor(_cursor(ledger)).alerts)
        now = happen(ledger, step, now)
        for record in ledger.drained(now):
            if isinstance(record, WatchAlert):
                assert record.phase in follows[last.get(record.key)], (step, record)
                last[record.key] = record.phase
    standing = {each[:3]: each[3] for each in ledger.known}
    assert standing == {key: each for key, each in last.items() if each is not Phase.CLEARED}


def happen(ledger: AlertLedger, step: object, now: float) -> float:
    """One step of a story; what time it is after it."""
    phases = {"fire": Phase.FIRING, "clear": Phase.CLEARED, "unknown": Phase.UNKNOWN}
    match step:
        case str() if step in phases:
            ledger.alert("n1", alert(phase=phases[step], time=now))
        case "silent":
            ledger.silent(silence(since=now), now)
        case "back":
            ledger.back("n1", None, now)
        case "over":
            ledger.over("n1", now)
        case ("look", bool() as fires, bool() as fresh):
            look(ledger, *([alert(time=now)] if fires else []), at=now, fresh=fresh)
        case ("pass", float() as seconds):
            now += seconds
            ledger.advance(now)
    return now


def _cursor(ledger: AlertLedger) -> str:
    return write_cursor(WatchCursor(SESSION, alerts=ledger.known))


class TestCursor:
    def test_says_what_it_was_given(self) -> None:
        known = (("n1", "gpu_idle", CARD, "firing", BEGUN),)
        cursor = WatchCursor(SESSION, 2, "running", "debug 1 0", known)
        assert read_cursor(write_cursor(cursor)) == cursor

    def test_is_short_whatever_stands(self) -> None:
        known = tuple(
            (f"n{number:04}", "gpu_idle", f"GPU-{number * 7919 % 99991:032x}", "firing", BEGUN)
            for number in range(8000)
        )
        text = write_cursor(WatchCursor(SESSION, alerts=known))
        assert len(text) <= 12 * 1024
        kept = read_cursor(text).alerts
        assert kept == known[: len(kept)]
        assert kept

    @pytest.mark.parametrize(
        "text",
        [
            "x",
            "%",
            "eJw",
            "A" * 20_000,
            write_cursor(WatchCursor("no session")),
            write_cursor(WatchCursor(SESSION, alerts=(("n", "r", "", "cleared", 1.0),))),
            write_cursor(WatchCursor(SESSION, alerts=(("n", "r", "", "on fire", 1.0),))),
            write_cursor(WatchCursor(SESSION, alerts=(("n", "r", "", "firing", 1e300),))),
        ],
    )
    def test_refuses_what_no_server_gave(self, text: str) -> None:
        with pytest.raises(UsageError, match="cursor"):
            read_cursor(text)
