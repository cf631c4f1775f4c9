"""The checks of the soak of sensitive work: each finds what it is for, in made-up histories."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from bench.soak.sensitive_history import (
    CHECKS,
    History,
    SeenClaim,
    SeenObject,
    SeenRead,
    SeenRecording,
    SeenReservation,
    SeenTerminal,
    acts_without_entry,
    bytes_not_recorded,
    entries_twice,
    lines_lost,
    reservations_apart,
    terminals_at_once,
)
from lattice.domain.audit import AuditAct, AuditEntry, AuditOutcome

ONE, TWO = "1" * 32, "2" * 32
JOB = "7"


def _entry(sequence: int, at: float, act: AuditAct, event: str, **texts: Any) -> AuditEntry:
    time = datetime.fromtimestamp(at, UTC)
    return AuditEntry(sequence=sequence, time=time, act=act, event=event, **texts)


def _lines(session: str, begin: float, numbers: range) -> bytes:
    return b"".join(
        f"{session} {number} {begin + number / 10:.6f} abc\r\n".encode() for number in numbers
    )


def _entries() -> tuple[AuditEntry, ...]:
    of_job = {"allocation": "7@1", "user": "alice"}
    acts = (
        (10.0, AuditAct.CLAIM, "claim-c1", {"target": "c1", "user": "alice"}),
        (11.0, AuditAct.ALLOCATION_START, "s", of_job),
        (12.0, AuditAct.ATTACH_START, "a1", {**of_job, "detail": f"session {ONE} on n1: sh"}),
        (15.0, AuditAct.LOG_READ, "r1", of_job),
        (20.0, AuditAct.ATTACH_END, f"attach-end-{ONE}", of_job),
        (21.0, AuditAct.ATTACH_START, "a2", {**of_job, "detail": f"session {TWO} on n2: sh"}),
        (30.0, AuditAct.ATTACH_END, f"attach-end-{TWO}", of_job),
        (31.0, AuditAct.RECORDING_READ, "r2", {**of_job, "detail": f"session {ONE} from chunk 0"}),
        (40.0, AuditAct.ALLOCATION_END, "e", of_job),
        (50.0, AuditAct.RELEASE, "release-x", {"target": "c1", "user": "alice"}),
    )
    return tuple(
        _entry(sequence, at, act, event, **texts)
        for sequence, (at, act, event, texts) in enumerate(acts, 1)
    )


def _terminal(session: str, node: str, opened: float, numbers: range) -> SeenTerminal:
    shown = _lines(session, opened, numbers) + b"mark\r\n"
    return SeenTerminal(
        session=session, job=JOB, node=node, opened=opened, recorded=True, shown=shown,
        typed=b"mark\r",
    )  # fmt: skip


def _sound() -> History:
    first, second = _terminal(ONE, "n1", 13.0, range(1, 9)), _terminal(TWO, "n2", 22.0, range(1, 5))
    return History(
        entries=_entries(),
        claims=[SeenClaim(claim="c1", user="alice", answered=10.5)],
        releases=[SeenClaim(claim="c1", user="alice", answered=50.5)],
        reservations=[SeenReservation(claim="c1", first=10.4, gone=50.4)],
        reads=[
            SeenRead(act=AuditAct.LOG_READ, user="alice", target=JOB, asked=14.0, answered=16.0),
            SeenRead(
                act=AuditAct.RECORDING_READ, user="alice", target=ONE, asked=30.5, answered=32.0
            ),
        ],
        terminals=[first, second],
        objects=[
            SeenObject(job=JOB, session=ONE, stored=13.0),
            SeenObject(job=JOB, session="", stored=14.0),
        ],
        ended={ONE: 19.0, TWO: 29.0},
        recordings={
            each.session: SeenRecording(
                output=each.shown + _lines(each.session, each.opened, range(count, count + 2)),
                typed=b"mark\rmore",
            )
            for each, count in ((first, 9), (second, 5))
        },
        jobs={JOB},
        claimed={"lattice-claim-c2": "erin n3"},
        reserved={"lattice-claim-c2": "erin n3"},
        outputs={JOB: (3, [0, 1, 2], False), "8": (3, [0, 2], True)},
    )


@pytest.mark.parametrize("name", CHECKS)
def test_a_sound_history_has_no_violation(name: str) -> None:
    assert CHECKS[name](_sound()) == []


Change = Callable[[History], None]


def _without(event: str) -> Change:
    def change(history: History) -> None:
        history.entries = tuple(each for each in history.entries if each.event != event)

    return change


def _late(event: str, at: float) -> Change:
    def change(history: History) -> None:
        late = datetime.fromtimestamp(at, UTC)
        history.entries = tuple(
            replace(each, time=late) if each.event == event else each for each in history.entries
        )

    return change


def _refused(event: str) -> Change:
    def change(history: History) -> None:
        history.entries = tuple(
            replace(each, outcome=AuditOutcome.REFUSED) if each.event == event else each
            for each in history.entries
        )

    return change


def _read_twice(history: History) -> None:
    history.reads.append(replace(history.reads[0], answered=17.0))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        pytest.param(_without("claim-c1"), "claim c1 of alice has no entry", id="no claim"),
        pytest.param(_late("claim-c1", 10.6), "claim c1 of alice has no entry", id="late claim"),
        pytest.param(_late("claim-c1", 10.45), "Slurm had a reservation of c1", id="reserved"),
        pytest.param(_without("release-x"), "reservation of c1 went without", id="no release"),
        pytest.param(_late("release-x", 50.45), "reservation of c1 went without", id="unreserved"),
        pytest.param(_refused("release-x"), "release of c1 has no entry", id="refused release"),
        pytest.param(_without("a1"), f"terminal {ONE} opened without", id="no attach"),
        pytest.param(_late("a1", 13.5), f"terminal {ONE} opened without", id="late attach"),
        pytest.param(_refused("a1"), f"terminal {ONE} opened without", id="refused attach"),
        pytest.param(_without("a1"), f"has a recording of {ONE}", id="stored recording"),
        pytest.param(
            _without(f"attach-end-{TWO}"), f"terminal {TWO} has no entry of its end", id="no end"
        ),
        pytest.param(_without("r1"), "alice read 7, and no log-read", id="no read"),
        pytest.param(_late("r1", 16.5), "alice read 7, and no log-read", id="late read"),
        pytest.param(_read_twice, "alice read 7, and no log-read", id="one entry for two reads"),
        pytest.param(_without("r2"), f"alice read {ONE}, and no recording-read", id="no replay"),
        pytest.param(_without("s"), "output of 7, whose start has no entry", id="stored output"),
        pytest.param(_without("e"), "job 7 has 0 entries allocation-end", id="no end of a job"),
    ],
)
def test_an_act_without_its_entry_before_is_found(change: Change, words: str) -> None:
    history = _sound()
    change(history)
    assert any(words in each for each in acts_without_entry(history)), acts_without_entry(history)


def test_a_start_of_a_job_that_is_recorded_twice_is_found() -> None:
    history = _sound()
    history.entries += (replace(history.entries[1], event="another", sequence=11),)
    assert acts_without_entry(history) == ["job 7 has 2 entries allocation-start"]


def test_a_reservation_that_slurm_took_back_needs_no_release() -> None:
    history = _sound()
    history.releases.clear()
    undone = _entry(11, 52.0, AuditAct.CLAIM, "claim-undone-c1", target="c1")
    _without("release-x")(history)
    history.entries += (replace(undone, outcome=AuditOutcome.FAILED),)
    assert acts_without_entry(history) == []


def test_an_entry_that_is_there_twice_is_found() -> None:
    history = _sound()
    history.entries += (replace(history.entries[0], sequence=11),)
    assert entries_twice(history) == ["event claim-c1 is there 2 times"]


def test_an_entry_that_was_left_out_is_found() -> None:
    history = _sound()
    _without("r1")(history)
    assert entries_twice(history) == ["the entries are not numbered from 1 on, without a gap"]


def test_a_terminal_that_opens_before_the_one_before_has_ended_is_found() -> None:
    history = _sound()
    history.ended[ONE] = 22.5
    assert terminals_at_once(history) == [f"job 7: terminal {TWO} opened before {ONE} had ended"]
    history.ended[ONE] = None
    assert len(terminals_at_once(history)) == 1


def test_two_terminals_that_were_seen_at_once_are_found() -> None:
    history = _sound()
    history.terminals[0] = _terminal(ONE, "n1", 13.0, range(1, 100))
    assert terminals_at_once(history) == [
        f"job 7: terminals {ONE} on n1 and {TWO} on n2 were both seen for 0.3 s"
    ]


def test_terminals_of_two_jobs_may_be_open_at_once() -> None:
    history = _sound()
    history.terminals[0] = replace(_terminal(ONE, "n1", 13.0, range(1, 100)), job="9")
    assert terminals_at_once(history) == []


def test_a_terminal_without_a_recording_is_found() -> None:
    history = _sound()
    history.terminals[0] = replace(history.terminals[0], recorded=False)
    assert terminals_at_once(history) == [f"terminal {ONE} was not recorded"]
    del history.recordings[ONE]
    assert bytes_not_recorded(history) == [f"terminal {ONE} has no recording"]


def _recorded(history: History, **changes: object) -> list[str]:
    history.recordings[ONE] = replace(history.recordings[ONE], **changes)  # type: ignore[arg-type]
    return bytes_not_recorded(history)


def test_a_byte_that_was_seen_and_is_not_recorded_is_found() -> None:
    history = _sound()
    whole = history.recordings[ONE].output
    size = len(history.terminals[0].shown)
    assert f"others from byte {size - 1} on" in _recorded(history, output=whole[: size - 1])[0]
    changed = whole[:20] + b"?" + whole[21:]
    assert "others from byte 20 on" in _recorded(history, output=changed)[0]
    assert "others from byte 31 on" in _recorded(history, output=whole[1:])[0]
    assert _recorded(history, output=whole) == []


def test_a_recording_that_is_not_whole_is_found() -> None:
    history = _sound()
    assert _recorded(history, problem="chunk 3 is missing") == [
        f"recording {ONE}: chunk 3 is missing"
    ]


def test_what_was_typed_and_is_not_recorded_is_found() -> None:
    assert _recorded(_sound(), typed=b"mar") == [
        f"terminal {ONE}: what was typed is not in its recording"
    ]


def test_a_line_that_the_program_wrote_and_nobody_recorded_is_found() -> None:
    history = _sound()
    output = history.terminals[0].shown + _lines(ONE, 13.0, range(10, 12))
    assert _recorded(history, output=output) == [
        f"recording {ONE} lacks lines that its program wrote"
    ]


def test_a_claim_that_does_not_agree_with_slurm_is_found() -> None:
    history = _sound()
    history.reserved["lattice-claim-c3"] = "dave n1"
    assert reservations_apart(history) == ["lattice-claim-c3: claimed by nobody, reserved dave n1"]
    history.reserved = {"lattice-claim-c2": "erin n[2-3]"}
    assert reservations_apart(history) == [
        "lattice-claim-c2: claimed erin n3, reserved erin n[2-3]"
    ]


def test_lines_that_are_lost_doubled_or_out_of_order_are_found() -> None:
    history = _sound()
    history.outputs = {"7": (3, [0, 2], False)}
    assert lines_lost(history) == ["job 7: 2 of 3 lines, and none is shown absent"]
    history.outputs = {"7": (3, [0, 0, 1, 2], False), "8": (2, [1, 0], True)}
    assert lines_lost(history) == [
        "job 7: lines twice or out of order", "job 8: lines twice or out of order"
    ]  # fmt: skip
