"""`lattice logs`: options to calls, records to text, ends to exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lattice.base.errors import DataUnavailable, LoginRequired, NotFound, Unavailable, UsageError
from lattice.base.fast_start import argv
from lattice.base.fast_start.decode import decode
from lattice.features.logs.command.logs import LOGS
from lattice.features.logs.model import LogBlock, LogGap, LogNote, LogRecord
from lattice.features.logs.render.lines import Template
from tests.fakes import answers, logs
from tests.fakes.shell import COMMON_OPTIONS, FakeFollowed, FakeShell

KINDS: dict[str, type[LogRecord]] = {"lines": LogBlock, "gap": LogGap, "note": LogNote}
STREAMS = "/v1/allocations/42/logs/streams"
CARD = "/v1/allocations/42"
END = logs.note("end", words="completed, exit 0", lines=0)


def record(told: Any) -> Any:
    if not isinstance(told, dict):
        return told
    return decode(json.dumps(told).encode(), KINDS[told["type"]])


def shell_of(*told: Any, routes: dict[str, Any] | None = None, **named: Any) -> FakeShell:
    known = {STREAMS: logs.streams(), CARD: answers.card(answers.allocation(42))}
    shell = FakeShell(known | (routes or {}), **named)
    shell.following = FakeFollowed([record(each) for each in told], cursor="c-7")
    return shell


def run(shell: FakeShell, *words: str) -> int:
    values = argv.read(LOGS, words)
    assert values is not None, words
    for common in COMMON_OPTIONS:
        values.pop(common)
    return LOGS.run(shell, **values)


def asked(*words: str, routes: dict[str, Any] | None = None) -> dict[str, list[str]]:
    shell = shell_of(routes=routes)
    run(shell, *words)
    (call,) = shell.streamed
    assert call.path == "/v1/allocations/42/logs/stream"
    found: dict[str, list[str]] = {}
    for name, value in call.params:
        found.setdefault(name, []).append(value)
    return found


@pytest.mark.spec("LOG-4")
@pytest.mark.parametrize(
    ("words", "query"),
    [
        ([], {"follow": ["false"]}),
        (["-f", "--tail", "0"], {"follow": ["true"], "tail": ["0"]}),
        (["--stdout"], {"follow": ["false"], "stream": ["stdout"]}),
        (["--stderr"], {"follow": ["false"], "stream": ["stderr"]}),
        (["--stdout", "--stderr"], {"follow": ["false"]}),
        (
            ["--node", "n[1-2]", "--node", "n9", "--rank", "0-2,7"],
            {"follow": ["false"], "node": ["n1", "n2", "n9"], "rank": ["0", "1", "2", "7"]},
        ),
        (["--attempt", "2"], {"follow": ["false"], "attempt": ["2"]}),
        (
            ["-g", "-x", "--exclude=DEBUG"],
            {"follow": ["false"], "grep": ["-x"], "exclude": ["DEBUG"]},
        ),
        (["--from", "c-3"], {"follow": ["false"], "cursor": ["c-3"]}),
        (["--since", "start"], {"follow": ["false"]}),
        (
            ["--since", "5m", "--until", "14:01"],
            {
                "follow": ["false"],
                "since": ["2026-11-15T13:57:11+00:00"],
                "until": ["2026-11-15T14:01:00+00:00"],
            },
        ),
        (
            ["--since", "2026-11-15T10:00:00+02:00"],
            {"follow": ["false"], "since": ["2026-11-15T08:00:00+00:00"]},
        ),
    ],
)
def test_options_become_the_question(words: list[str], query: dict[str, list[str]]) -> None:
    assert asked("42", *words) == query


def test_inside_a_job_that_job_is_meant() -> None:
    assert asked() == {"follow": ["false"]}


@pytest.mark.spec("LOG-4")
def test_the_attempt_before() -> None:
    three = {STREAMS: logs.streams(attempts=3, attempt=3)}
    assert asked("42", "--previous", routes=three)["attempt"] == ["2"]
    with pytest.raises(UsageError, match="no attempt before"):
        run(shell_of(), "42", "-p")


@pytest.mark.spec("CLI-2")
@pytest.mark.parametrize(
    "words",
    [
        ["--since", "sometime"],
        ["--since", "5m", "--until", "10m"],
        ["--previous", "--attempt", "1"],
    ],
)
def test_what_makes_no_sense(words: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        run(shell_of(), "42", *words)
    assert caught.value.hint


@pytest.mark.parametrize(
    "words",
    [
        ["--tail", "x"],
        ["--rank", "a"],
        ["--rank", "5-3"],
        ["--rank", "0-99999"],
        ["--attempt", "0"],
        ["--highlight", "("],
        ["--node", "n["],
        ["--prefix", "x"],
        ["-o", "yaml"],
    ],
)
def test_what_can_not_be_read(words: list[str]) -> None:
    assert argv.read(LOGS, ["42", *words]) is None


@pytest.mark.spec("LOG-3", "CLI-1")
def test_a_pipe_gets_the_lines_and_nothing_else() -> None:
    told = [logs.block("a\n"), logs.block("10%", 1, count=0, unfinished=True)]
    told += [logs.gap(node="n1", seq=1), logs.block("10%\r99%\n" + "same\n" * 3, 1)]
    told += [logs.block("no end", 5, count=0, unfinished=True), END]
    shell = shell_of(*told)
    assert run(shell, "42", "-f") == 0
    assert shell.out == "a\n99%\nsame\nsame\nsame\nno end\n"
    assert shell.warnings == ["--- n1: 4.1 KB missing (file truncated) ---"]
    assert shell.notes == ["--- end of job 42 (completed, exit 0), 0 lines missed ---"]
    assert shell.following.closed


@pytest.mark.spec("LOG-7")
def test_raw_is_what_was_written() -> None:
    hostile = "10%\r99%\n\x1b]0;t\x07\n"
    shell = shell_of(logs.block(hostile), logs.block("no end", 2, count=0, unfinished=True))
    run(shell, "42", "--raw")
    assert shell.out == hostile + "no end"
    assert shell.calls == [], "nobody asked whose the lines are"


@pytest.mark.spec("LOG-7")
def test_labels_are_known_from_the_first_line_on() -> None:
    two = logs.streams(logs.stream(), logs.stream(node="n2"), logs.stream(node="n3", bytes=0))
    shell = shell_of(logs.block("a\n"), routes={STREAMS: two})
    run(shell, "42")
    assert shell.out == "n1 │ a\n"
    shell = shell_of(logs.block("a\n"), routes={STREAMS: two})
    run(shell, "42", "--node", "n1")
    assert shell.out == "a\n"
    shell = shell_of(logs.block("a\n"), routes={STREAMS: Unavailable("no")})
    run(shell, "42")
    assert shell.out == "a\n", "it is no reason to show nothing"


@pytest.mark.spec("LOG-4", "CLI-1")
@pytest.mark.parametrize("form", ["json", "ndjson", "yaml"])
def test_records(form: str) -> None:
    told = [logs.block("a\nb\n"), logs.gap(), logs.note("stalled", node="n2"), END]
    shell = shell_of(*told, logs.block("c", 2, count=0, unfinished=True), output=form)
    run(shell, "42", "-f")
    found = [json.loads(line) for line in shell.out.splitlines()]
    assert [each["type"] for each in found] == ["line", "line", "gap", "note", "note", "line"]
    assert [each.get("text") for each in found if each["type"] == "line"] == ["a", "b", "c"]
    assert found[-1]["unfinished"] is True
    assert shell.notes == shell.warnings == []


@pytest.mark.spec("LOG-3")
def test_a_terminal_that_looks_back_has_a_pager() -> None:
    told = [logs.block("a\n" + "b\n" * 5), logs.gap(node="n1"), logs.block("c\n", 6), END]
    shell = shell_of(*told, live=True, width=80)
    run(shell, "42")
    assert shell.out == ""
    assert shell.paged == (
        "a\nb\n  × 5\n--- n1: 4.1 KB missing (file truncated) ---\nc\n"
        "--- end of job 42 (completed, exit 0), 0 lines missed ---\n"
    )
    shell = shell_of(*told, live=True, width=80)
    run(shell, "42", "--no-pager")
    assert shell.paged == ""
    assert shell.out == "a\n" + "b\n" * 5 + "c\n"


@pytest.mark.spec("LOG-7")
def test_a_terminal_that_follows() -> None:
    def later(shell: FakeShell, seconds: float) -> Any:
        return lambda: shell.sleep(seconds)

    shell = shell_of(live=True, width=80)
    alive = logs.note("alive")
    steps: list[Any] = [
        record(logs.block("a\n")),
        later(shell, 130),
        record(alive),
        record(logs.note("stalled", node="n2", seconds=15)),
        record(logs.note("disconnected", node="n3")),
        later(shell, 130),
        record(alive),
        record(logs.note("disconnected", words="reset")),
        record(logs.note("reconnected", seconds=1.5, lines=0)),
        record(END),
    ]
    shell.following = FakeFollowed(steps)
    run(shell, "42", "-f")
    assert "… quiet 2 m, link ok" in shell.out
    assert "… quiet 4 m, n[2-3] not answering" in shell.out
    assert "--- disconnected (reset); trying again ---\r\x1b[K--- reconnected" in shell.out
    assert shell.out.endswith("--- end of job 42 (completed, exit 0), 0 lines missed ---\n")
    assert shell.notes == shell.warnings == []


@pytest.mark.spec("LOG-4")
def test_a_job_that_waits_is_waited_for() -> None:
    states = ["pending", "pending", "running"]
    cards: list[Any] = [answers.card(answers.allocation(42, state=each)) for each in states]
    cards.insert(1, Unavailable("Slurm is away."))
    shell = shell_of(logs.block("a\n"), END, routes={CARD: lambda: cards.pop(0)})
    assert run(shell, "42", "-f") == 0
    assert shell.out == "a\n"
    assert shell.notes[0] == "42 has not started; it is shown as soon as it writes."
    assert len(shell.notes) == 2
    assert cards == []
    away = shell_of(logs.block("a\n"), routes={CARD: Unavailable("Slurm is away.")})
    run(away, "42", "-f")
    assert away.out == "a\n", "logs may be had while Slurm is away"


@pytest.mark.spec("CLI-2")
@pytest.mark.parametrize(
    ("state", "code"),
    [("completed", 0), ("failed", 100), ("timeout", 100), ("cancelled", 103), ("running", 101)],
)
def test_exit_status(state: str, code: int) -> None:
    card = {"/v1/allocations/42": answers.card(answers.allocation(42, state=state))}
    assert run(shell_of(END, routes=card), "42", "--exit-status") == code
    assert run(shell_of(END, routes=card), "42") == 0


@pytest.mark.spec("LOG-4")
@pytest.mark.parametrize("error", [Unavailable("Gone."), LoginRequired("Ended.")])
def test_what_breaks_off_says_how_to_go_on(error: Exception) -> None:
    shell = shell_of(logs.block("a\n"), error)
    with pytest.raises(type(error)):
        run(shell, "42", "-f")
    assert shell.warnings == ["resume: lattice logs 42 -f --from c-7"]
    shell = shell_of(NotFound("No."))
    with pytest.raises(NotFound):
        run(shell, "42", "-f")
    assert shell.warnings == []


def test_an_interrupt_leaves_the_terminal_in_order() -> None:
    opened = logs.block("10%", 0, count=0, unfinished=True)
    shell = shell_of(opened, KeyboardInterrupt(), live=True, width=80)
    with pytest.raises(KeyboardInterrupt):
        run(shell, "42", "-f")
    assert shell.out.endswith("10%\n")
    assert shell.following.closed


ONE = logs.stream(bytes=12)
TWO = logs.stream(node="n2", source="0.3", stream="stderr", rank=3, bytes=5)
BODIES = {"n1.batch.stdout": b"hello\nworld\n", "n2.0.3.stderr": b"oops\n"}


def downloading(*facts: dict[str, Any], **named: Any) -> FakeShell:
    changes = named.pop("changes", {})
    shell = shell_of(routes={STREAMS: logs.streams(*facts, **changes)}, **named)
    shell.bodies = dict(BODIES)
    return shell


@pytest.mark.spec("LOG-9")
def test_download(tmp_path: Path) -> None:
    target = tmp_path / "new" / "logs"
    shell = downloading(ONE, TWO)
    assert run(shell, "42", "--download", str(target)) == 0
    assert (target / "n1.batch.stdout.log").read_bytes() == b"hello\nworld\n"
    assert (target / "n2.0.3.stderr.log").read_bytes() == b"oops\n"
    assert sorted(each.name for each in target.iterdir()) == [
        "logs.json",
        "n1.batch.stdout.log",
        "n2.0.3.stderr.log",
    ]
    assert (target / "n1.batch.stdout.log").stat().st_mode & 0o077 == 0
    assert shell.notes == [f"2 files, 17 B, in {target}"]
    assert shell.out == "", "no bar in a pipe"
    again = downloading(ONE, TWO)
    run(again, "42", "--download", str(target))
    assert again.fetched == [], "it is all there"


@pytest.mark.spec("LOG-9")
def test_download_goes_on_where_it_broke_off(tmp_path: Path) -> None:
    run(downloading(TWO), "42", "--download", str(tmp_path))
    (tmp_path / "n1.batch.stdout.log.part").write_bytes(b"hello\n")
    shell = downloading(ONE, TWO)
    run(shell, "42", "--download", str(tmp_path))
    (call,) = shell.fetched
    assert dict(call.params)["offset"] == "6"
    assert (tmp_path / "n1.batch.stdout.log").read_bytes() == b"hello\nworld\n"
    assert not list(tmp_path.glob("*.part"))


@pytest.mark.spec("LOG-9")
def test_download_of_a_job_that_goes_on(tmp_path: Path) -> None:
    shell = downloading(logs.stream(bytes=6), changes={"finished": False})
    shell.bodies["n1.batch.stdout"] = b"hello\n"
    run(shell, "42", "--download", str(tmp_path))
    assert "fetches what is new: lattice logs 42 --download" in shell.notes[-1]
    run(downloading(ONE), "42", "--download", str(tmp_path))
    assert (tmp_path / "n1.batch.stdout.log").read_bytes() == b"hello\nworld\n"


@pytest.mark.spec("LOG-9")
def test_download_never_joins_two_jobs(tmp_path: Path) -> None:
    run(downloading(ONE), "42", "--download", str(tmp_path))
    other = downloading(ONE, changes={"allocation": "41@x"})
    with pytest.raises(UsageError, match="logs of something else"):
        run(other, "42", "--download", str(tmp_path))
    (tmp_path / "n1.batch.stdout.log").write_bytes(b"x" * 99)
    with pytest.raises(UsageError, match="longer than the log"):
        run(downloading(ONE), "42", "--download", str(tmp_path))


@pytest.mark.spec("LOG-9")
def test_download_of_what_was_chosen(tmp_path: Path) -> None:
    run(downloading(ONE, TWO), "42", "--download", str(tmp_path), "--rank", "3")
    assert [each.name for each in tmp_path.glob("*.log")] == ["n2.0.3.stderr.log"]
    with pytest.raises(DataUnavailable):
        run(downloading(ONE), "42", "--download", str(tmp_path), "--node", "n7")


@pytest.mark.spec("LOG-9")
def test_download_into_no_other_folder(tmp_path: Path) -> None:
    """Attack 12: a name of a node is no path."""
    evil = logs.stream(node="../../n1", source="batch", bytes=1)
    shell = downloading(evil, logs.stream(node="..", bytes=1))
    shell.bodies = {"../../n1.batch.stdout": b"x", "...batch.stdout": b"y"}
    run(shell, "42", "--download", str(tmp_path / "in"))
    assert [each.name for each in tmp_path.iterdir()] == ["in"]
    assert sorted(each.name for each in (tmp_path / "in").glob("*.log")) == [
        "%2E.%2F..%2Fn1.batch.stdout.log",
        "%2E..batch.stdout.log",
    ]


@pytest.mark.spec("LOG-9")
def test_download_on_a_terminal_has_a_bar_and_can_be_stopped(tmp_path: Path) -> None:
    shell = downloading(ONE, live=True, width=100)

    class Stopped:
        end = None

        def __iter__(self) -> Any:
            yield b"hello\n"
            raise KeyboardInterrupt

    shell.fetch = lambda _: Stopped()  # type: ignore[method-assign,assignment,return-value]
    with pytest.raises(KeyboardInterrupt):
        run(shell, "42", "--download", str(tmp_path))
    assert "n1.batch.stdout.log  " in shell.out
    assert "░" in shell.out
    assert shell.out.endswith("\r\x1b[K")
    assert (tmp_path / "n1.batch.stdout.log.part").read_bytes() == b"hello\n"
    assert shell.warnings == [
        f"Stopped; what is there is kept. Go on with: lattice logs 42 --download {tmp_path}"
    ]


@pytest.mark.spec("LOG-7")
def test_on_a_terminal_a_crowd_is_shown_a_moment_later_as_one() -> None:
    names = [f"n{number}" for number in range(1, 9)]
    crowd = logs.streams(*(logs.stream(node=each) for each in names))
    told = [logs.block("up\n", node=each) for each in names]
    shell = shell_of(routes={STREAMS: crowd}, live=True, width=60)
    seen: list[str] = []
    shell.following = FakeFollowed(
        [*map(record, told), lambda: shell.sleep(1.0), lambda: seen.append(shell.out), record(END)]
    )
    run(shell, "42", "-f")
    assert seen == ["×8 │ up  (all)\n"]
    assert not shell.asked, "nothing is left to be done later"


@pytest.mark.spec("LOG-7")
def test_on_a_terminal_what_happens_to_many_nodes_is_one_mark() -> None:
    away = [logs.note("disconnected", node=f"n{n}", words="gone") for n in range(1, 9)]
    back = [logs.note("reconnected", node=f"n{n}", seconds=n) for n in range(1, 9)]
    shell = shell_of(*away, logs.note("alive"), *back, END, live=True, width=100)
    run(shell, "42", "-f")
    marks = [line for line in shell.out.splitlines() if line.startswith("---")]
    assert marks == [
        "--- n[1-8]: disconnected (gone); trying again ---",
        "--- n[1-8]: reconnected after 8.0 s ---",
        "--- end of job 42 (completed, exit 0), 0 lines missed ---",
    ]


@pytest.mark.spec("LOG-7")
def test_a_flood_can_be_shown_whole_by_a_key() -> None:
    shell = shell_of(live=True, width=80)
    shell.interactive = True

    def press() -> None:
        assert shell.listening is not None
        shell.listening("x")
        shell.listening("f")

    def flood(number: int) -> dict[str, Any]:
        text = "".join(f"{number * 9000 + n}\n" for n in range(9000))
        return logs.block(text, number * 9000)

    heard: list[bool] = []
    shell.following = FakeFollowed(
        [
            *map(record, map(flood, range(3))),
            press,
            record(flood(3)),
            lambda: heard.append(shell.listening is None),
            record(END),
        ]
    )
    run(shell, "42", "-f")
    assert "press f for all / --no-sample" in shell.out
    lines = shell.out.splitlines()
    assert [str(n) for n in range(27_000, 36_000)] == [each for each in lines if each.isdigit()][
        -9000:
    ]
    assert heard == [True], "what is typed afterwards is the shell's"


@pytest.mark.spec("LOG-4")
def test_a_template() -> None:
    told = (logs.block("a\nb\n", 4, rank=3, node="n2"), logs.block("c\n", stream="stderr"))
    shell = shell_of(*told)
    run(shell, "42", "--template", r"{{{seq}}}\t{node}:{rank} {stream} {text}")
    assert shell.out == "{4}\tn2:3 stdout a\n{5}\tn2:3 stdout b\n{0}\tn1: stderr c\n"
    shell = shell_of(logs.block("a\n"), live=True, width=80)
    run(shell, "42", "-f", "--template", "{time} {text}")
    assert shell.out == "14:02:11.402 a\n"


@pytest.mark.parametrize("template", ["", "{", "a}b", "{nodes}", "{text.__class__}", "{0}", "{}"])
def test_a_template_that_is_none(template: str) -> None:
    assert argv.read(LOGS, ["42", "--template", template]) is None, "so that it is explained"
    with pytest.raises(UsageError) as caught:
        Template.read(template)
    assert "{text}" in (caught.value.hint or "")


def page(*records: dict[str, Any]) -> dict[str, Any]:
    return {
        "allocation": "42@2026-11-15T13:00:00Z",
        "attempt": 1,
        "attempts": 1,
        "records": list(records),
        "cursor": "",
        "ranked": True,
        "finished": True,
    }


def test_the_first_error_of_all_and_what_is_around_it() -> None:
    found = page(logs.block("E: CUDA error\nother error\n", 10, node="n7", rank=5, offset=2000))
    around = page(
        logs.block("".join(f"line {n}\n" for n in range(5, 10)), 5, node="n7", rank=5),
        logs.block("of another step\n", 0, node="n7", rank=5, source="1.5"),
        logs.block("E: CUDA error\nother error\n", 10, node="n7", rank=5),
        logs.block("".join(f"after {n}\n" for n in range(12, 90)), 12, node="n7", rank=5),
    )
    answers_in_turn = iter([found, around])
    shell = shell_of(routes={"/v1/allocations/42/logs": lambda: next(answers_in_turn)})
    assert run(shell, "42", "--first-error", "--exclude", "retry") == 0
    lines = [each.removeprefix("n7 │ ") for each in shell.out.splitlines()]
    assert lines[:5] == ["line 7", "line 8", "line 9", "E: CUDA error", "other error"]
    assert lines[-1] == "after 29"
    assert shell.notes == [
        (
            "--- the first of all, 2026-11-15T14:02:11.402Z on n7; "
            "more: lattice logs 42 --node n7 --rank 5 ---"
        )
    ]
    first, second = (dict(each.params) for each in shell.calls if each.path.endswith("/logs"))
    assert first["limit"] == "1"
    assert first["exclude"] == "retry"
    assert "traceback" in first["grep"]
    assert (second["node"], second["rank"], second["offset"]) == ("n7", "5", "1000")
    assert "grep" not in second


def test_no_error_at_all() -> None:
    shell = shell_of(routes={"/v1/allocations/42/logs": page()})
    assert run(shell, "42", "--first-error") == 0
    assert shell.notes == ["No line looks like an error."]
    assert shell.out == ""


def test_a_cursor_too_long_to_type_is_told_as_a_time() -> None:
    shell = shell_of()
    told = [record(logs.block("a\n")), LoginRequired("Ended.")]
    shell.following = FakeFollowed(told, cursor="c" * 5000)
    with pytest.raises(LoginRequired):
        run(shell, "42", "-f")
    assert shell.warnings == [
        (
            "resume: lattice logs 42 -f --since 2026-11-15T14:02:11.402Z"
            "   (lines of that moment come again)"
        )
    ]


@pytest.mark.spec("LOG-4", "LOG-3")
@pytest.mark.parametrize(
    ("words", "note"),
    [
        (
            ("--since", "13:50", "--until", "14:01"),
            "No line since 13:50:00Z and before 14:01:00Z.",
        ),
        (("--since", "13:50"), "No line since 13:50:00Z."),
        (("--until", "14:01"), "No line before 14:01:00Z."),
        (
            ("--since", "13:50", "--grep", "loss"),
            "No line that was asked for since 13:50:00Z.",
        ),
    ],
)
def test_a_time_without_a_line_says_so(words: tuple[str, ...], note: str) -> None:
    for output in ("table", "json"):
        shell = shell_of(END, output=output)
        assert run(shell, "42", *words) == 0
        assert note in shell.notes


@pytest.mark.spec("LOG-4")
def test_where_lines_are_shown_or_no_time_was_named_nothing_is_said() -> None:
    for told, words in (((logs.block("one\n"), END), ("--since", "13:50")), ((END,), ())):
        shell = shell_of(*told)
        run(shell, "42", *words)
        assert not [each for each in shell.notes if "No line" in each]


_SINCE_SEALED = "changed or removed in the object store since it was sealed"


@pytest.mark.spec("LOG-3")
@pytest.mark.parametrize(
    ("told", "mark"),
    [
        (
            logs.gap(cause="tampered", lost_bytes=4100),
            f"--- n2: 4.1 KB missing ({_SINCE_SEALED}) ---",
        ),
        (
            logs.note("tampered", words="1 object was added in the object store"),
            "--- 1 object was added in the object store ---",
        ),
    ],
)
@pytest.mark.parametrize("options", [(), ("--exit-status",), ("-o", "json")])
def test_what_was_tampered_with_is_reported_and_is_no_success(
    told: dict[str, Any], mark: str, options: tuple[str, ...]
) -> None:
    shell = shell_of(
        logs.block("one\n"), told, END, output="json" if "json" in options else "table"
    )
    assert run(shell, "42", *(each for each in options if each == "--exit-status")) == 76
    if "json" not in options:
        assert mark in shell.warnings
