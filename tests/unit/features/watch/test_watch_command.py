"""`lattice watch`: options to calls, records to lines, ends to exit codes."""

from __future__ import annotations

import json
import signal
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyte
import pytest

from lattice.base.command import Option
from lattice.base.errors import UsageError
from lattice.base.fast_start import argv
from lattice.base.fast_start.decode import decode
from lattice.base.style import Style
from lattice.features.watch.command import notify
from lattice.features.watch.command.watch import WATCH
from lattice.features.watch.model import WatchNote, WatchNoteKind
from lattice.features.watch.operations import KINDS
from lattice.features.watch.render import number, span
from tests.eventually import eventually
from tests.fakes.shell import COMMON_OPTIONS, FakeFollowed, FakeShell

TIME = "2026-11-15T14:02:11Z"
SINCE = "2026-11-15T13:58:11Z"
WORDS = "GPU-1 is used 3 %; it was below 10 % for over 60 s."
REMEDY = "See whether the job waits for input."


def figure(metric: str, value: float | None, unit: str = "%", **changes: Any) -> dict[str, Any]:
    source = "unavailable" if value is None else "host_local_probe"
    return {"metric": metric, "value": value, "unit": unit, "source": source} | changes


def measured(*figures: dict[str, Any], **changes: Any) -> dict[str, Any]:
    told = list(figures or (figure("gpu_utilization", 97),))
    return {
        "type": "measured",
        "time": TIME,
        "resolution_s": 30,
        "nodes": [{"node": "n1", "time": TIME, "figures": told}],
        "summary": told,
        "measured": 1,
        "node_count": 1,
    } | changes


def alert(**changes: Any) -> dict[str, Any]:
    return {
        "type": "alert",
        "node": "n2",
        "rule": "gpu_idle",
        "subject": "GPU-1",
        "phase": "firing",
        "severity": "warning",
        "value": 3,
        "bound": 10,
        "unit": "%",
        "since": SINCE,
        "time": TIME,
        "words": WORDS,
        "remedy": REMEDY,
    } | changes


def state(which: str = "running", **changes: Any) -> dict[str, Any]:
    return {
        "type": "state", "allocation": "42", "state": which, "attempt": 1, "nodes": "n[1-2]",
        "node_count": 2, "time": TIME,
    } | changes  # fmt: skip


def ended(which: str = "completed", **changes: Any) -> dict[str, Any]:
    return {
        "type": "ended", "allocation": "42", "state": which, "attempt": 1, "time": TIME,
        "ended": TIME, "exit_code": {"code": 0, "signal": 0},
    } | changes  # fmt: skip


def shell_of(*told: dict[str, Any], **named: Any) -> FakeShell:
    shell = FakeShell({}, **named)
    records = [decode(json.dumps(each).encode(), KINDS[each["type"]]) for each in told]
    shell.following = FakeFollowed(records)
    return shell


def run(shell: FakeShell, *words: str) -> int:
    values = argv.read(WATCH, words)
    assert values is not None, words
    for common in COMMON_OPTIONS:
        values.pop(common)
    return WATCH.run(shell, **values)


@pytest.mark.spec("WATCH-1")
@pytest.mark.parametrize(
    ("words", "query"),
    [
        ([], {}),
        (["--metrics", "gpu_utilization,memory_used"],
         {"metrics": ["gpu_utilization", "memory_used"]}),
        (["--metric", "gpu_util", "--metric", "oom_kills"],
         {"metrics": ["gpu_utilization", "oom_kills"]}),
        (["--alerts-only"], {"alerts_only": ["true"]}),
        (["--until", "ended", "--alerts-only"], {"alerts_only": ["true"]}),
        (["--until", "gpu_power_draw<90", "--alerts-only"], {"metrics": ["gpu_power_draw"]}),
        (["--until", "gpu_power_draw<90", "--metric", "oom_kills"],
         {"metrics": ["oom_kills", "gpu_power_draw"]}),
    ],
)  # fmt: skip
def test_options_become_a_question(words: list[str], query: dict[str, list[str]]) -> None:
    shell = shell_of(ended())
    run(shell, "42", *words)
    (call,) = shell.streamed
    assert call.path == "/v1/allocations/42/watch"
    found: dict[str, list[str]] = {}
    for name, value in call.params:
        found.setdefault(name, []).append(value)
    assert found == query


def test_without_an_id_it_is_the_job_one_is_in() -> None:
    shell = shell_of(ended())
    run(shell)
    assert shell.streamed[0].path == "/v1/allocations/42/watch"


@pytest.mark.spec("CLI-2")
@pytest.mark.parametrize(
    ("name", "text"), [("metrics", "gpu"), ("until", "soon"), ("notify", "'"), ("notify", " ")]
)
def test_what_makes_no_sense_is_refused_before_anything_is_asked(name: str, text: str) -> None:
    (option,) = [each for each in WATCH.params if each.name == name]
    assert isinstance(option, Option)
    assert option.read is not None
    with pytest.raises(UsageError) as refusal:
        option.read(text)
    assert refusal.value.hint


class TestLines:
    def lines(self, *told: dict[str, Any], **named: Any) -> list[str]:
        shell = shell_of(*told, ended(), **named)
        run(shell, "42")
        assert shell.following.closed
        return shell.out.splitlines()

    @pytest.mark.spec("WATCH-1", "CLI-1")
    def test_a_story_in_a_pipe(self) -> None:
        cleared = alert(
            phase="cleared", lasted_s=240, words="GPU-1 is used 80 %.", time="2026-11-15T14:06:11Z"
        )
        assert self.lines(state(), measured(), alert(), cleared) == [
            "14:02:11Z  ▸  42 running on n[1-2]",
            "14:02:11Z  n1  gpu 97 %",
            f"14:02:11Z  ! WARNING  n2 gpu_idle: {WORDS} Since 13:58:11Z. → {REMEDY}",
            "14:06:11Z  ✓ resolved  n2 gpu_idle after 4 m: GPU-1 is used 80 %.",
            "14:02:11Z  ■  42 ended at 14:02:11Z: completed, exit 0:0",
        ]

    @pytest.mark.spec("WATCH-1")
    def test_a_lost_node(self) -> None:
        stale = {
            "type": "node", "node": "n2", "word": "stale", "time": TIME, "since": SINCE,
            "reason": "its link is lost.",
        }  # fmt: skip
        lost = alert(
            rule="node_lost", severity="critical", words="Node n2 is lost.", value=None, bound=None
        )
        back = {"type": "node", "node": "n2", "word": "back", "time": TIME, "seconds": 65}
        unknown = alert(phase="unknown", value=None, words="The node does not answer.")
        lines = self.lines(stale, unknown, lost, back)
        assert lines[0].endswith("? stale  n2 does not answer since 13:58:11Z (its link is lost)")
        assert "? unknown  n2 gpu_idle: The node does not answer. Since" in lines[1]
        assert "✗ CRITICAL  n2 node_lost: Node n2 is lost." in lines[2]
        assert lines[3].endswith("✓ back  n2 after 1 m")

    @pytest.mark.spec("WATCH-1")
    def test_what_befalls_many_nodes_in_one_moment_is_one_line(self) -> None:
        many = [
            alert(node=f"n{at}", value=at % 7 + 1, since=TIME, follows=at < 37)
            for at in range(1, 38)
        ]
        many[4]["since"] = SINCE
        cleared = [
            alert(node=f"n{at}", phase="cleared", lasted_s=60 * at, value=80, follows=at < 4)
            for at in range(1, 5)
        ]
        fired, passed, _ = self.lines(*many, *cleared)
        assert fired == (
            "14:02:11Z  ! WARNING  gpu_idle on 37 nodes, n[1-37] (1 % to 7 %), as on n5: "
            f"{WORDS} Since 13:58:11Z. → {REMEDY}"
        )
        assert passed == (
            "14:02:11Z  ✓ resolved  gpu_idle on 4 nodes, n[1-4] after 1 m to 4 m (80 %), as on "
            f"n1: {WORDS}"
        )

    @pytest.mark.spec("WATCH-1")
    def test_a_lost_rack_is_two_lines_and_not_a_hundred(self) -> None:
        gone = [
            {
                "type": "node", "node": f"n{at}", "word": "stale", "time": TIME, "since": SINCE,
                "reason": "its link is lost", "follows": True,
            }
            for at in range(1, 41)
        ]  # fmt: skip
        lost = [
            alert(node=f"n{at}", rule="node_lost", severity="critical", subject="", value=None,
                  words=f"Node n{at} is lost.", follows=at < 40)
            for at in range(1, 41)
        ]  # fmt: skip
        stale, critical, _ = self.lines(*gone, *lost)
        assert stale.endswith(
            "? stale  40 nodes, n[1-40] do not answer since 13:58:11Z (its link is lost)"
        )
        assert "✗ CRITICAL  node_lost on 40 nodes, n[1-40], as on n1: Node n1 is lost." in critical

    @pytest.mark.spec("WATCH-1")
    def test_unlike_ones_few_ones_and_those_of_one_node_are_told_apart(self) -> None:
        cards = [alert(node="n1", subject=f"GPU-{at}", follows=True) for at in range(8)]
        two = [alert(node=f"n{at}", rule="oom_kill", follows=at < 3) for at in (2, 3)]
        lines = self.lines(*cards, *two)
        assert "gpu_idle 8 times on n1 (3 %), as on n1:" in lines[0]
        assert " n2 oom_kill:" in lines[1]
        assert " n3 oom_kill:" in lines[2]

    def test_a_moment_that_was_broken_off_is_shown_all_the_same(self) -> None:
        shell = shell_of(*(alert(node=f"n{at}", follows=True) for at in range(1, 4)))
        run(shell, "42")
        assert "gpu_idle on 3 nodes, n[1-3]" in shell.out

    @pytest.mark.spec("SRC-2")
    def test_what_nobody_measured_is_a_dash_with_its_reason_once(self) -> None:
        missing = figure("gpu_utilization", None, reason="no GPU", last_error="NVML: no driver")
        told = measured(missing, figure("cpu_utilization", 150))
        assert self.lines(told, told)[:3] == [
            "14:02:11Z  n1  gpu —  cpu 150 %",
            "14:02:11Z  gpu_utilization — no GPU (NVML: no driver)",
            "14:02:11Z  n1  gpu —  cpu 150 %",
        ]

    @pytest.mark.spec("CLI-1", "SRC-1")
    def test_many_nodes_are_a_line_and_each_its_own_when_wide(self) -> None:
        sent = figure("network_tx_bytes", 1_234_000, "bytes/s", scope="node")
        told = measured(sent, measured=61, node_count=64)
        assert self.lines(told)[0] == "14:02:11Z  61/64 nodes  sent 1.18 MiB/s (node)"
        assert self.lines(told, output="wide")[1].startswith("14:02:11Z  n1  sent")

    @pytest.mark.spec("WATCH-1")
    def test_modes_progress_and_the_stream_itself(self) -> None:
        mode = {
            "type": "mode", "mode": "debug", "interval_s": 1, "until": "2026-11-15T14:32:11Z",
            "set_by": "alice", "time": TIME,
        }  # fmt: skip
        quiet = {"type": "progress", "time": TIME, "moving": False, "output": SINCE, "last": SINCE}
        moving = quiet | {"moving": True}
        lost = {"type": "note", "kind": "disconnected", "time": TIME, "words": "refused."}
        back = {"type": "note", "kind": "reconnected", "time": TIME, "seconds": 3.2}
        alive = {"type": "note", "kind": "alive", "time": TIME}
        away = {"type": "note", "kind": "slurm_away", "time": TIME, "words": "Slurm is silent."}
        lines = self.lines(mode, quiet, moving, lost, back, alive, away)
        assert lines[0].endswith("measured every 1 s (debug until 14:32:11Z, set by alice)")
        assert "? quiet  the job does not get on: the last sign was output 13:58" in lines[1]
        assert "the job gets on: output" in lines[2]
        assert lines[3:6] == [
            "--- disconnected (refused); trying again ---",
            "--- reconnected after 3 s; what changed meanwhile follows ---",
            "--- Slurm is silent ---",
        ]

    @pytest.mark.parametrize("field", ["words", "remedy", "node", "rule"])
    def test_nothing_a_node_says_drives_the_terminal(self, field: str) -> None:
        (line, _) = self.lines(alert(**{field: "a\x1b]0;owned\x07\nb"}))
        assert "\x1b" not in line
        assert "\x07" not in line

    @pytest.mark.spec("WATCH-1")
    def test_alerts_only_has_no_figures(self) -> None:
        shell = shell_of(measured(), alert(), ended())
        run(shell, "42", "--alerts-only", "--until", "gpu_util<10")
        assert "gpu 97" not in shell.out
        assert "WARNING" in shell.out

    @pytest.mark.spec("CLI-1")
    @pytest.mark.parametrize("output", ["json", "ndjson"])
    def test_an_object_a_line(self, output: str) -> None:
        shell = shell_of(state(), measured(), alert(), ended(), output=output)
        run(shell, "42")
        told = [json.loads(line) for line in shell.out.splitlines()]
        assert [each["type"] for each in told] == ["state", "measured", "alert", "ended"]
        assert told[1]["summary"][0]["value"] == 97


class TestATerminal:
    def screen(self, *told: dict[str, Any], width: int = 80) -> list[str]:
        shell = shell_of(*told, live=True, width=width)
        shell.style = Style(width=width, height=20, glyphs=True, zone=shell.style.zone)
        run(shell, "42")
        screen = pyte.Screen(width, 20)
        screen.set_mode(pyte.modes.LNM)
        pyte.Stream(screen).feed(shell.out)
        rows = [row.rstrip() for row in screen.display]
        assert screen.cursor.x == 0, "left at the beginning of a line"
        return [row for row in rows if row]

    @pytest.mark.spec("WATCH-1")
    def test_figures_are_painted_in_one_line_and_events_stay_above(self) -> None:
        later = measured(figure("gpu_utilization", 12))
        rows = self.screen(state(), measured(), measured(), later, ended())
        assert len(rows) == 3
        assert "running" in rows[0]
        assert "ended" in rows[1]
        assert rows[2].endswith("gpu 12 %")

    def test_a_long_alert_goes_on_below_within_the_window(self) -> None:
        rows = self.screen(alert(), ended(), width=60)
        assert len(rows) > 3
        assert all(len(row) <= 60 for row in rows)
        assert rows[1].startswith(" " * 10)

    def test_many_alerts_of_one_moment_are_one_above_the_figures(self) -> None:
        many = [alert(node=f"n{at}", follows=at < 37) for at in range(1, 38)]
        rows = self.screen(measured(), *many, ended(), width=200)
        assert len(rows) == 3
        assert "gpu_idle on 37 nodes, n[1-37]" in rows[0]
        assert rows[2].endswith("gpu 97 %")

    def test_a_narrow_one(self) -> None:
        rows = self.screen(alert(), measured(), ended(), width=34)
        assert all(len(row) <= 34 for row in rows)
        assert any("WARNING" in row for row in rows)


class TestCodes:
    @pytest.mark.spec("CLI-2")
    @pytest.mark.parametrize(
        ("words", "told", "code"),
        [
            ([], [ended("failed")], 0),
            (["--exit-status"], [ended()], 0),
            (["--exit-status"], [ended("failed")], 100),
            (["--exit-status"], [ended("timeout")], 100),
            (["--exit-status"], [ended("cancelled")], 103),
            (["--exit-status"], [state()], 101),
            (["--until", "running"], [state("pending"), state(), alert()], 0),
            (["--until", "running"], [state("pending"), ended("cancelled")], 79),
            (["--until", "ended"], [state(), ended("failed")], 0),
            (["--until", "ended", "--exit-status"], [ended("failed")], 100),
            (["--until", "gpu_utilization>90"], [measured()], 0),
            (["--until", "gpu_utilization<10"], [measured(), ended()], 79),
            (["--until", "gpu_utilization<10"], [measured()], 101),
        ],
    )
    def test_how_it_ended(self, words: list[str], told: list[dict[str, Any]], code: int) -> None:
        assert run(shell_of(*told), "42", *words) == code

    def test_it_returns_as_soon_as_it_is_so(self) -> None:
        shell = shell_of(state("pending"), state(), measured(), ended())
        run(shell, "42", "--until", "running")
        assert "gpu" not in shell.out
        assert shell.following.closed

    @pytest.mark.spec("CLI-2")
    def test_who_waited_in_vain_is_told(self) -> None:
        shell = shell_of(ended())
        run(shell, "42", "--until", "gpu_util<10 for 5m")
        assert shell.warnings == ["The job ended before 'gpu_util<10 for 5m' came true."]


class TestNotices:
    def test_the_bell_rings_for_what_fires_and_for_the_end(self) -> None:
        shell = shell_of(
            state(), alert(), alert(phase="cleared"), measured(), ended(), live=True, width=80
        )
        run(shell, "42", "--notify", "bell")
        assert shell.out.count("\a") == 2

    @pytest.mark.spec("CLI-1")
    def test_a_pipe_has_no_bell(self) -> None:
        shell = shell_of(alert(), ended())
        run(shell, "42", "--notify", "bell")
        assert "\a" not in shell.out

    def test_a_command_gets_a_line_of_json_and_no_words_in_its_arguments(
        self, tmp_path: Path
    ) -> None:
        note = tmp_path / "note"
        script = f"import sys; open({str(note)!r}, 'w').write(sys.stdin.read() + str(sys.argv))"
        program = tmp_path / "tell.py"
        program.write_text(script)
        shell = shell_of(alert(words="$(touch /tmp/owned)"), state())
        run(shell, "42", "--notify", f"{sys.executable} {program}")
        eventually(lambda: note.exists() and note.read_text().endswith("]"))
        told, arguments = note.read_text().split("\n")
        assert json.loads(told)["words"] == "$(touch /tmp/owned)"
        assert arguments == f"['{program}']"

    def test_a_command_that_is_not_there_is_said_and_nothing_ends(self) -> None:
        shell = shell_of(alert(), ended())
        assert run(shell, "42", "--notify", "/no/such/program") == 0
        assert "can't be run" in shell.warnings[0]

    def test_commands_that_do_not_end_are_killed_and_reaped(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(notify, "_LAST_S", 0.2)
        notice = notify.OwnCommand(["sleep", "600"])
        record = WatchNote(kind=WatchNoteKind.ALIVE, time=datetime.now(UTC))
        for _ in range(3):
            notice.send(FakeShell({}), record)
        running = list(notice._running)
        notice.end()
        assert [each.returncode for each in running] == [-signal.SIGKILL] * 3


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (97.2, "%", "97 %"),
        (0.25, "%", "0.25 %"),
        (0, "%", "0 %"),
        (999, "bytes", "999 B"),
        (1024, "bytes", "1 KiB"),
        (31_234_567_890, "bytes", "29.1 GiB"),
        (5e15, "bytes", "4547 TiB"),
        (1_250_000, "bytes/s", "1.19 MiB/s"),
        (512, "µs", "512 µs"),
        (16_384, "µs", "16.4 ms"),
        (3, "", "3"),
        (387.4, "W", "387 W"),
    ],
)
def test_numbers(value: float, unit: str, text: str) -> None:
    assert number(value, unit) == text


def test_spans() -> None:
    assert [span(each) for each in (3.2, 65, 7500)] == ["3 s", "1 m", "2 h 5 m"]
