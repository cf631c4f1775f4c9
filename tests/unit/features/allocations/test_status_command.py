from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from lattice.base.errors import NotFound, Unavailable, UsageError
from lattice.base.text import cells
from lattice.features.allocations.command.options import read_states
from lattice.features.allocations.command.status import status
from tests.fakes import answers
from tests.fakes.shell import FakeShell, Told
from tests.unit.observe.test_mlflow_file import TABLES

LIST = "/v1/allocations"


def run(routes: dict[str, Told], shell: FakeShell | None = None, **values: Any) -> FakeShell:
    shell = shell or FakeShell(routes)
    shell.routes = routes
    asked = {"id": None, "state": (), "user": None, "all": False, "watch": False} | values
    assert status(shell, **asked) == 0
    return shell


@pytest.mark.spec("ALLOC-1")
def test_list_shows_what_the_promise_names() -> None:
    shell = run({LIST: answers.listing(answers.allocation(vcluster=None), answers.pending())})
    assert shell.out.splitlines() == [
        "ID     NAME   STATE      NODES       TIME     LIMIT  VCLUSTER  REASON",
        "12345  train  ● running  n[1-2]  00:32:11  02:00:00  —         —",
        (
            "12346  train  ○ pending  4              —  02:00:00  gpu       "
            "Jobs with a higher priority are ahead of it in the queue (Priority)"
        ),
    ]
    assert shell.warnings == []


@pytest.mark.spec("ALLOC-2")
def test_on_a_terminal_the_reason_stands_below_in_words_with_its_code() -> None:
    shell = run({LIST: answers.listing(answers.pending())}, FakeShell({}, live=True, width=60))
    assert shell.out.splitlines()[2:] == [
        "    └ Jobs with a higher priority are ahead of it in the",
        "      queue (Priority)",
        "1 pending",
    ]


def test_running_time_counts_on_where_slurm_gives_none() -> None:
    shell = run({LIST: answers.listing(answers.allocation(elapsed_s=None))})
    assert "00:32:11" in shell.out


@pytest.mark.spec("ALLOC-1")
def test_finished_and_retried_ones_are_told_apart() -> None:
    failed = answers.allocation(7, state="failed", attempt=2)
    done = answers.allocation(8, state="completed")
    lines = run({LIST: answers.listing(failed, done)}).out.splitlines()
    assert lines[0].split() == [
        "ID",
        "NAME",
        "STATE",
        "NODES",
        "TIME",
        "LIMIT",
        "VCLUSTER",
        "ATTEMPT",
    ]
    assert "✗ failed" in lines[1]
    assert lines[1].endswith("2")
    assert "✓ completed" in lines[2]
    narrow = run({LIST: answers.listing(failed, done)}, FakeShell({}, width=80))
    assert narrow.out.splitlines()[1].startswith("7 #2 ")


@pytest.mark.spec("ALLOC-1")
def test_arrays_are_grouped_by_state_and_counted() -> None:
    waiting = answers.pending(
        420, id="42", array={"job_id": 42, "task_id": None, "waiting": "20-100:2%5"}
    )
    tasks = [answers.task(number, "completed") for number in (1, 2, 3, 5)]
    shell = run(
        {LIST: answers.listing(waiting, answers.task(9, "running"), *tasks)},
        FakeShell({}, live=True, width=90),
    )
    rows = [line.split()[0] for line in shell.out.splitlines() if line[0].isdigit()][:-1]
    assert rows == ["42_[20-100:2]", "42_9", "42_[1-3,5]"]
    assert "○ pending ×41" in shell.out
    assert "✓ completed ×4" in shell.out
    assert shell.out.splitlines()[-1] == "1 running · 41 pending · 4 completed"


def test_wide_shows_every_task_and_more_columns() -> None:
    tasks = [answers.task(number, "completed") for number in (1, 2)]
    shell = run({LIST: answers.listing(*tasks)}, FakeShell({}, output="wide"))
    heading, *rows = shell.out.splitlines()
    assert {"USER", "ACCOUNT", "PARTITION", "QOS", "SUBMITTED", "CPUS", "GPUS", "EXIT"} <= set(
        heading.split()
    )
    assert [row.split()[0] for row in rows] == ["42_1", "42_2"]


@pytest.mark.spec("ALLOC-1")
def test_choices_go_to_the_server() -> None:
    shell = run(
        {LIST: answers.listing()}, state=(("failed",), ("running", "failed")), user="bob", all=True
    )
    assert shell.calls[0].params == (
        ("state", "failed"),
        ("state", "running"),
        ("user", "bob"),
        ("all", "true"),
    )
    assert shell.notes == ["No allocation matches. `lattice history` shows older ones."]


def test_others_are_shown_with_their_owner() -> None:
    shell = run({LIST: answers.listing(answers.allocation(user="bob"))}, all=True)
    assert "USER" in shell.out
    assert "bob" in shell.out


def test_empty_list_says_what_to_do() -> None:
    shell = run({LIST: answers.listing()})
    assert shell.out == ""
    assert "Submit one with `lattice submit`" in shell.notes[0]


@pytest.mark.spec("ALLOC-7")
def test_stale_state_carries_its_age_and_time_stands_still() -> None:
    stale = {"name": "slurmctld", "ok": False, "as_of": "2026-11-15T14:01:31Z", "age_s": 40.2}
    shell = run({LIST: answers.listing(answers.allocation(elapsed_s=None), sources=[stale])})
    assert shell.warnings == [
        "slurmctld has not answered for 40 s; this is the state as of 14:01:31Z."
    ]
    assert "00:31:31" in shell.out, "not a second more than was known"


@pytest.mark.spec("ALLOC-7")
def test_missing_past_is_said() -> None:
    away = {"name": "slurmdbd", "ok": False, "error": "no answer"}
    shell = run({LIST: answers.listing(answers.allocation(), sources=[answers.OK, away])})
    assert shell.warnings == ["Finished allocations are missing: slurmdbd does not answer."]


@pytest.mark.spec("CLI-1")
def test_json_is_the_whole_answer() -> None:
    shell = run({LIST: answers.listing(answers.allocation())}, FakeShell({}, output="json"))
    document = json.loads(shell.out)
    assert document["allocations"][0]["id"] == "12345"
    assert {source["name"] for source in document["sources"]} == {"slurmctld", "slurmdbd"}


HOSTILE = "evil\x1b]0;owned\x07\x9b2J\u202egpj\r\n\x00"


@pytest.mark.spec("CLI-1")
@pytest.mark.parametrize("width", [None, 80])
def test_hostile_text_is_inert_everywhere(width: int | None) -> None:
    """Attack 16."""
    hostile = dict.fromkeys(
        ("name", "user", "account", "partition", "qos", "vcluster", "nodes", "id", "work_dir"),
        HOSTILE,
    ) | {"reason": {"code": HOSTILE, "words": HOSTILE}, "command": HOSTILE, "comment": HOSTILE}
    source = {"name": HOSTILE, "ok": False, "as_of": answers.NOW, "age_s": 1, "error": HOSTILE}
    each = answers.allocation(1, **hostile)
    routes: dict[str, Told] = {
        LIST: answers.listing(each, sources=[source]),
        f"{LIST}/1": answers.card(each, sources=[source], earlier=[HOSTILE], siblings=[each]),
    }
    for id_ in (None, "1"):
        shell = run(
            routes, FakeShell({}, width=width, live=width is not None), id=id_, all=id_ is None
        )
        for line in [*shell.out.split("\n"), *shell.warnings, *shell.notes]:
            assert line.isprintable()
        for line in shell.out.split("\n"):
            assert width is None or cells(line) <= width or line.startswith("Next:")


# One in full


ATTEMPTS = [
    {
        "number": 1,
        "state": "node_fail",
        "submitted": "2026-11-15T13:00:00Z",
        "started": "2026-11-15T13:01:00Z",
        "ended": "2026-11-15T13:20:00Z",
        "nodes": "n3",
        "node_count": 1,
        "exit_code": {"code": 0, "signal": 9},
    },
    {
        "number": 2,
        "state": "running",
        "submitted": "2026-11-15T13:00:00Z",
        "started": "2026-11-15T13:30:00Z",
        "nodes": "n[1-2]",
        "node_count": 2,
    },
]


@pytest.mark.spec("ALLOC-1")
def test_card_fits_one_screen_and_ends_in_what_to_do_next() -> None:
    each = answers.allocation(attempt=2, attempts=ATTEMPTS)
    shell = run(
        {f"{LIST}/12345": answers.card(each, earlier=["12345@1763165000"])},
        FakeShell({}, live=True, width=80),
        id="12345",
    )
    lines = shell.out.splitlines()
    assert len(lines) <= 24
    assert lines[0] == "12345  train  ● running"
    assert "  Owner      alice (account research, tenant physics)" in lines
    assert "  Time       00:32:11 of 02:00:00, 01:27:49 left" in lines
    assert any("✗ node fail" in line and "n3" in line and "0:9" in line for line in lines)
    assert "  Earlier    the id was used before: 12345@1763165000" in lines
    assert lines[-1] == (
        "Next: lattice logs -f 12345 · lattice status 12345 --watch · lattice wait 12345"
    )


@pytest.mark.spec("ALLOC-1")
@pytest.mark.parametrize(
    ("last", "words"),
    [
        ({"time": "2026-11-15T14:01:30Z", "nodes": 2, "answered": 2}, "14:01:30Z (41 s ago)"),
        ({"time": None, "nodes": 2, "answered": 2}, "none yet"),
        (
            {"time": None, "nodes": 1, "answered": 0, "trouble": "Node n1 is not linked."},
            "not known: Node n1 is not linked.",
        ),
        (
            {
                "time": "2026-11-15T12:01:30Z",
                "nodes": 64,
                "answered": 62,
                "trouble": "n7 did not answer in time",
            },
            "12:01:30Z (2 h ago); 2 of 64 nodes did not say: n7 did not answer in time",
        ),
    ],
)
def test_card_of_a_running_one_says_when_it_last_wrote(last: dict[str, Any], words: str) -> None:
    shell = run({f"{LIST}/1": answers.card(answers.allocation(1), last_output=last)}, id="1")
    assert f"Last output  {words}\n" in shell.out
    assert ("last_output", "true") in shell.calls[0].params


@pytest.mark.spec("ALLOC-2")
def test_card_of_a_pending_one_says_why_and_when() -> None:
    each = answers.pending(expected_start="2026-11-15T15:00:00Z")
    shell = run({f"{LIST}/12346": answers.card(each)}, id="12346")
    assert (
        "Reason     Jobs with a higher priority are ahead of it in the queue (Priority)"
        in shell.out
    )
    assert "Expected   15:00:00Z by Slurm's estimate" in shell.out
    assert "Nodes      4 asked for" in shell.out


@pytest.mark.parametrize(
    ("comment", "line"),
    [
        ("try 3", "Comment    try 3"),
        ('lattice:{"key":"5fd1"}', ""),
        ('lattice:{"key":"5fd1","labels":{"run":"7","team":"a"}}', "Labels     run=7, team=a"),
    ],
)
def test_card_shows_labels_and_not_how_they_are_stored(comment: str, line: str) -> None:
    each = answers.allocation(1, comment=comment)
    shell = run({f"{LIST}/1": answers.card(each)}, id="1")
    assert line in shell.out
    assert "5fd1" not in shell.out


def test_card_of_an_array_sums_it_up() -> None:
    rest = [answers.task(number, "completed") for number in (2, 3)]
    shell = run(
        {f"{LIST}/42_1": answers.card(answers.task(1, "running"), siblings=rest)}, id="42_1"
    )
    assert "Array      3 in all: 1 running · 2 completed" in shell.out


@pytest.mark.parametrize("name", ["12345", "12345_7", "12345+1", "12345@1763165000"])
def test_ids_go_to_the_server_as_they_are(name: str) -> None:
    from urllib.parse import quote

    path = f"{LIST}/{quote(name, safe='')}"
    shell = run({path: answers.card(answers.allocation())}, id=name)
    assert shell.calls[0].path == path


def test_last_is_the_newest_submitted() -> None:
    old = answers.allocation(1)
    new = answers.allocation(
        2, submitted="2026-11-15T13:59:00Z", first_submitted="2026-11-15T13:59:00Z"
    )
    routes: dict[str, Told] = {
        LIST: answers.listing(old, new),
        f"{LIST}/2%401794751140": answers.card(new),
    }
    assert "\n  Submitted  13:59:00Z\n" in run(routes, id="@last").out


def test_names_mean_the_only_one_so_called() -> None:
    one, other = answers.allocation(1, name="train"), answers.allocation(2, name="other")
    routes: dict[str, Told] = {
        LIST: answers.listing(one, other),
        f"{LIST}/1%401794747600": answers.card(one),
    }
    assert run(routes, id="train").out.startswith("1  train")
    with pytest.raises(NotFound, match="'nothing'"):
        run(routes, id="nothing")
    with pytest.raises(UsageError, match="Several allocations are named 'train': 1, 3"):
        run({LIST: answers.listing(one, answers.allocation(3))}, id="train")


def test_name_of_an_array_means_the_array() -> None:
    tasks = [answers.task(1, "running"), answers.task(2, "running")]
    routes: dict[str, Told] = {LIST: answers.listing(*tasks), f"{LIST}/42": answers.card(tasks[0])}
    assert run(routes, id="sweep").calls[-1].path == f"{LIST}/42"


@pytest.mark.parametrize(
    ("environment", "name"),
    [
        ({"SLURM_JOB_ID": "77"}, "77"),
        ({"SLURM_JOB_ID": "77", "SLURM_ARRAY_JOB_ID": "70", "SLURM_ARRAY_TASK_ID": "7"}, "70_7"),
    ],
)
def test_inside_a_job_the_default_is_that_job(environment: dict[str, str], name: str) -> None:
    shell = FakeShell({}, environment=environment)
    run({f"{LIST}/{name}": answers.card(answers.allocation())}, shell)
    assert shell.calls[0].path == f"{LIST}/{name}"
    run({LIST: answers.listing()}, shell, state=((),))
    assert shell.calls[-1].path == LIST, "a choice asks for the list"


def test_id_and_choice_together_make_no_sense() -> None:
    with pytest.raises(UsageError, match="go with no id"):
        run({}, id="1", all=True)


@pytest.mark.spec("AUTH-12")
def test_not_there_is_passed_on() -> None:
    with pytest.raises(NotFound):
        run({}, id="99")


# States


@pytest.mark.parametrize(
    ("text", "states"),
    [
        ("running", ("running",)),
        ("R,PD", ("running", "pending")),
        ("Node-Fail,oom", ("node_fail", "out_of_memory")),
        ("all", ()),
    ],
)
def test_states_by_word_or_slurms_letters(text: str, states: tuple[str, ...]) -> None:
    assert read_states(text) == states


def test_groups_of_states() -> None:
    assert set(read_states("finished")) >= {"completed", "failed", "timeout"}
    assert set(read_states("unfinished")) >= {"pending", "running"}
    with pytest.raises(UsageError, match="'sleeping' is no state"):
        read_states("running,sleeping")


# Watch


def test_watch_in_a_pipe_tells_changes_only() -> None:
    states = ["pending", "pending", "running", "running", "completed"]
    routes: dict[str, Told] = {
        f"{LIST}/1": lambda: answers.card(answers.allocation(1, state=states.pop(0), nodes=""))
    }
    shell = run(routes, id="1", watch=True)
    assert shell.out.splitlines() == [
        "14:02:11Z  1 train  ○ pending",
        "14:02:15Z  1 train  pending → ● running",
        "14:02:19Z  1 train  running → ✓ completed",
    ]


@pytest.mark.spec("CLI-1")
def test_watch_as_json_is_one_record_a_line() -> None:
    states = ["pending", "running", "completed"]
    routes: dict[str, Told] = {
        f"{LIST}/1": lambda: answers.card(answers.allocation(1, state=states.pop(0)))
    }
    shell = run(routes, FakeShell({}, output="json"), id="1", watch=True)
    assert [json.loads(line)["state"] for line in shell.out.splitlines()] == [
        "pending",
        "running",
        "completed",
    ]


def test_watch_on_a_terminal_rewrites_only_what_changed() -> None:
    states = ["pending", "pending", "completed"]

    def card() -> dict[str, Any]:
        return answers.card(answers.allocation(1, state=states.pop(0), elapsed_s=5))

    shell = run({f"{LIST}/1": card}, FakeShell({}, live=True, width=80), id="1", watch=True)
    whole, *rest = shell.out.split("\x1b[", 1)
    assert whole.startswith("1  train  ○ pending\n")
    assert "Time" not in rest[0], "an unchanged line is not written again"
    assert "✓ completed" in rest[0]


def test_watch_outlives_a_server_that_is_away_and_says_so() -> None:
    told: list[Any] = [
        answers.card(answers.allocation(1)),
        Unavailable("Can't reach it"),
        Unavailable("Can't reach it"),
        answers.card(answers.allocation(1, state="completed")),
    ]
    shell = run({f"{LIST}/1": lambda: told.pop(0)}, id="1", watch=True)
    assert shell.warnings == ["Can't reach it; trying again.", "The server answers again."]


def test_watch_gives_up_in_the_end() -> None:
    with pytest.raises(Unavailable):
        run({f"{LIST}/1": Unavailable("gone")}, id="1", watch=True)


def test_watch_says_once_that_a_source_is_silent() -> None:
    stale = {"name": "slurmctld", "ok": False, "as_of": answers.NOW, "age_s": 40}
    shell = FakeShell({LIST: answers.listing(answers.allocation(), sources=[stale])})
    shell.longest_s = 7
    with pytest.raises(KeyboardInterrupt):
        run(dict(shell.routes), shell, watch=True)
    assert len(shell.warnings) == 1


def test_watch_on_a_terminal_says_in_place_that_the_server_is_away() -> None:
    told: list[Any] = [
        answers.card(answers.allocation(1, elapsed_s=5)),
        Unavailable("Can't\x1b reach it"),
        answers.card(answers.allocation(1, state="completed", elapsed_s=5)),
    ]
    shell = FakeShell({}, live=True, width=80)
    run({f"{LIST}/1": lambda: told.pop(0)}, shell, id="1", watch=True)
    assert "Can't␛ reach it; trying again.\n1  train  ● running\n" in shell.out
    assert shell.warnings == []


def test_watch_keeps_to_the_height_of_the_terminal() -> None:
    many = answers.listing(*(answers.allocation(number) for number in range(1, 60)))
    shell = FakeShell({LIST: many}, live=True, width=80)
    shell.style = shell.style._replace(height=24)
    shell.longest_s = 1
    with pytest.raises(KeyboardInterrupt):
        run(dict(shell.routes), shell, watch=True)
    lines = shell.out.splitlines()
    assert len(lines) == 23
    assert lines[-1].startswith("… ")


@pytest.mark.spec("AUTH-7")
def test_the_owners_card_says_with_whom_it_is_shared_and_who_read_it() -> None:
    share = {
        "allocation": "12345@1",
        "owner": "alice",
        "user": "bob",
        "since": "2026-11-15T12:00:00Z",
        "until": "2026-11-15T15:00:00Z",
    }
    record = {
        "allocation": "12345@1",
        "reader": "carol",
        "standing": "tenant admin",
        "first": "2026-11-15T12:00:00Z",
        "last": "2026-11-15T12:31:00Z",
        "reads": 1,
        "follows": 0,
        "downloads": 0,
    }
    older = record | {"last": "2026-11-15T11:00:00Z", "follows": 1, "reads": 0}
    others = [record | {"reader": f"r{number}\x1b[1m"} for number in range(4)]
    card = answers.card(answers.allocation()) | {
        "shares": [share],
        "readers": [record, older, *others],
    }
    out = run({f"{LIST}/12345": card}, id="12345").out
    assert "Shared     with bob until 15:00:00Z" in out
    assert "Read       by carol (tenant admin) 2 times, last 12:31:00Z" in out
    assert "and by 2 more: lattice share 12345" in out
    assert "\x1b" not in out


def test_the_card_names_the_newest_training_runs() -> None:
    trained = {
        "id": "r1",
        "name": "resnet\x1b[31m",
        "experiment": "vision",
        "user": "alice",
        "status": "running",
        "started": answers.NOW,
        "ended": None,
        "allocation": "12345",
        "attempts": [1],
        "metrics": [{"name": "loss", "value": 0.25, "step": 9, "time": answers.NOW}],
    }
    card = {"allocation": answers.allocation(), "sources": [answers.OK], "runs": [trained] * 5}
    shell = run({"/v1/allocations/12345": card}, id="12345")
    assert dict(shell.calls[0].params)["runs"] == "true"
    assert shell.out.count("(running, loss 0.25)") == 3
    assert "and 2 more: lattice runs" in shell.out
    assert "\x1b" not in shell.out


@pytest.mark.spec("SRC-3")
def test_the_card_names_slices_and_the_ports_of_their_guests() -> None:
    guest = {
        "name": "blue",
        "gpus": [0, 1],
        "state": "unavailable",
        "reason": "the guest can't be reached",
        "ports": [{"name": "eth0", "kind": "ethernet", "up": True, "speed_bits": 1e10}],
    }
    slices = [{"node": "n1", "guest": guest}]
    answer = answers.card(answers.allocation(), slices=slices)
    shell = run({f"{LIST}/12345": answer}, id="12345")
    assert "n1 blue: 2 GPUs, unavailable; the guest can't be reached" in shell.out
    assert "network: eth0 up 10 Gbit/s" in shell.out


def test_the_card_names_the_runs_of_ones_own_file(tmp_path: Path) -> None:
    file = tmp_path / "ml.db"
    with closing(sqlite3.connect(file)) as base:
        base.executescript(TABLES)
        base.execute("UPDATE tags SET value = '12345'")
        base.execute("UPDATE runs SET start_time = 1794749460000")
        base.commit()
    card = {"allocation": answers.allocation(), "sources": [answers.OK]}
    shell = FakeShell({}, environment={"MLFLOW_TRACKING_URI": f"sqlite:///{file}"})
    run({"/v1/allocations/12345": card}, shell, id="12345")
    assert "fit (running, loss 0.25)" in shell.out
    assert shell.warnings == []
    file.write_text("no database")
    run({"/v1/allocations/12345": card}, shell, id="12345")
    assert "ml.db" in shell.warnings[0]
