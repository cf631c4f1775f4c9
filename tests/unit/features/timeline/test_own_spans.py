"""`lattice timeline --spans`: the rows, the page and the document."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.trace import Tracer

from tests.otel_files import JOB, indented, lines, one_span, otlp_lines
from tests.unit.features.timeline.test_timeline_command import EVIL, Page, run

BEGAN = datetime(2026, 11, 15, 13, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def trained(tracer: Tracer) -> None:
    """Three epochs from 13:10 on, each with a checkpoint at its end."""
    for number in range(3):
        begin = BEGAN + (10 + 6 * number) * MINUTE
        save = ("checkpoint.save", begin + 5 * MINUTE, begin + 6 * MINUTE)
        one_span(tracer, f"train.epoch {number}", begin, begin + 6 * MINUTE, inner=[save])
    stop = BEGAN + 28 * MINUTE
    one_span(
        tracer, "test", stop, stop + MINUTE, events=[("early_stopping", stop, {"patience": 3})]
    )


def rows(text: str) -> dict[str, str]:
    return {each[:22].rstrip(): each[22:] for each in text.splitlines()}


@pytest.mark.spec("RUN-3")
@pytest.mark.parametrize("form", [lines, indented, otlp_lines])
def test_epochs_checkpoints_and_events_stand_on_the_axis(tmp_path: Path, form: Any) -> None:
    file = tmp_path / "spans-42.json"
    file.write_text(form(trained))
    shell = run("--spans", str(tmp_path / "spans-%j.json"), width=106)
    found = rows(shell.out)
    assert found["train.epoch #"][:60] == " " * 10 + "██████▐█████▐█████" + " " * 32
    assert (
        found[" checkpoint.save"][:60] == " " * 15 + "█" + " " * 5 + "█" + " " * 5 + "█" + " " * 32
    )
    assert found["early_stopping"].index("●") == 28
    assert "patience 3" in found["early_stopping"]
    # 18 of the 40 minutes in which it ran.
    assert "3 × 00:06:00, 45%" in found["train.epoch #"]
    assert "?" not in shell.out
    assert shell.asked == []


def test_the_variable_names_the_files_and_the_option_replaces_it(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(lines(trained))
    named = {"LATTICE_SPANS": str(tmp_path)}
    assert len(json.loads(run(output="json", environment=named).out)["spans"]) == 3
    other = run("--spans", str(tmp_path / "none"), output="json", environment=named)
    found = json.loads(other.out)
    assert found["spans"] == []
    assert any("none: No such file" in each for each in found["missing"])
    twice = run("--spans", str(tmp_path), "--spans", str(tmp_path / "a.json"), output="json")
    assert [each["count"] for each in json.loads(twice.out)["spans"]] == [6, 6, 2]


def test_without_files_the_document_has_the_same_form() -> None:
    found = json.loads(run(output="json").out)
    assert found["spans"] == found["marks"] == []


@pytest.mark.spec("RUN-3")
def test_what_names_no_job_is_marked_and_explained(tmp_path: Path) -> None:
    file = tmp_path / "spans.json"
    file.write_text(lines(trained, {}) + lines(trained, JOB | {"slurm.job.id": "7"}))
    shell = run("--spans", str(file))
    assert "? train.epoch #" in shell.out
    assert "may be another one's" in shell.out
    assert "left out: 7 records of another job" in shell.out


def test_text_of_a_span_acts_on_nothing(tmp_path: Path) -> None:
    def evil(tracer: Tracer) -> None:
        events = [(EVIL, BEGAN + MINUTE, {EVIL: EVIL})]
        one_span(tracer, EVIL, BEGAN + MINUTE, BEGAN + 2 * MINUTE, events=events)

    file = tmp_path / "spans.json"
    file.write_text(lines(evil))
    for output in ("table", "json"):
        assert "\x1b" not in run("--spans", str(file), output=output).out
    page = tmp_path / "page.html"
    run("--spans", str(file), "--html", str(page))
    parsed = Page()
    parsed.feed(page.read_text())
    assert "script" not in parsed.tags
    assert not {name for name, _ in parsed.attributes} & {"src", "href", "onload"}
    assert "\x1b" not in page.read_text()


@pytest.mark.spec("RUN-3")
def test_the_page_has_every_span_name_and_mark(tmp_path: Path) -> None:
    file, page = tmp_path / "spans.json", tmp_path / "page.html"
    file.write_text(lines(trained))
    run("--spans", str(file), "--html", str(page))
    text = page.read_text()
    assert text.count('fill="#117733"') == 3
    assert text.count('fill="#332288"') == 1
    assert "Spans, as the job says itself" in text
    assert "What the job has noted" in text
    assert "early_stopping" in text


def test_many_names_leave_epochs_and_checkpoints_visible(tmp_path: Path) -> None:
    def many(tracer: Tracer) -> None:
        trained(tracer)
        for number in range(40):
            begin = BEGAN + 10 * MINUTE
            name = f"layer{number:02}x"
            one_span(
                tracer,
                name,
                begin,
                begin + 20 * MINUTE,
                events=[(f"event-{number}x", begin, {})],
            )

    file = tmp_path / "spans.json"
    file.write_text(lines(many))
    found = rows(run("--spans", str(file)).out)
    assert {"train.epoch #", " checkpoint.save", "31 more spans", "35 more events"} <= found.keys()


@pytest.mark.spec("RUN-3")
def test_many_spans_are_one_row(tmp_path: Path) -> None:
    def one(tracer: Tracer) -> None:
        begin = BEGAN + 10 * MINUTE
        one_span(tracer, "train.step", begin, begin + timedelta(milliseconds=20))

    file = tmp_path / "spans.json"
    file.write_text(lines(one) * 5000)
    found = rows(run("--spans", str(file), width=106).out)
    assert found["train.step"][:60] == " " * 10 + "▁" + " " * 49
    assert "5000 × 20.0ms, <1%" in found["train.step"]
