"""Files of spans: every form that is read, whose they are, and what hostile files can't do."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.trace import Tracer

from lattice.domain.span import LONGEST_MARK_TEXT, LONGEST_SPAN_NAME, WrittenMark, WrittenSpan
from lattice.observe.span_files.reader import OwnRecord, SpanFileLimits, SpanFiles
from lattice.observe.span_files.records import RecordDecoder
from tests.fakes.cluster import allocation
from tests.otel_files import (
    JOB,
    indented,
    indented_logs,
    lines,
    logged,
    one_span,
    otlp_lines,
    otlp_log_lines,
)

BEGAN = datetime(2026, 11, 15, 13, tzinfo=UTC)
NOW = BEGAN + timedelta(hours=1)
SECOND = timedelta(seconds=1)
MINE = allocation(42, "alice", "research", submitted=BEGAN)
FORMS = pytest.mark.parametrize("form", [lines, indented, otlp_lines])
Form = Callable[..., str]


def trained(tracer: Tracer) -> None:
    begin = BEGAN + 10 * SECOND
    one_span(
        tracer,
        "train.epoch",
        begin,
        begin + 60 * SECOND,
        inner=[("checkpoint.save", begin + 50 * SECOND, begin + 55 * SECOND)],
        events=[("early_stopping", begin + 59 * SECOND, {"patience": 3, "best": 0.25})],
    )


def read(
    *paths: Path | str, limits: SpanFileLimits | None = None, now: datetime = NOW
) -> tuple[list[OwnRecord], tuple[str, ...]]:
    files = SpanFiles([str(each) for each in paths], 42, limits)
    found = list(files.of(MINE, now))
    return found, files.missing()


def written(folder: Path, text: str | bytes, name: str = "spans.json") -> Path:
    file = folder / name
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


def console_span(**more: Any) -> dict[str, Any]:
    return {
        "name": "step",
        "context": {"trace_id": "0x1", "span_id": "0x2"},
        "parent_id": None,
        "start_time": "2026-11-15T13:00:10.000000Z",
        "end_time": "2026-11-15T13:00:20.000000Z",
        "events": [],
        "resource": {"attributes": JOB},
    } | more


@pytest.mark.spec("RUN-3")
@FORMS
def test_spans_with_their_events_are_read_in_every_form(tmp_path: Path, form: Form) -> None:
    found, missing = read(written(tmp_path, form(trained) + form(trained)))
    assert missing == ()
    assert len(found) == 4
    assert all(each.is_named for each in found)
    save, epoch = found[0].record, found[1].record
    assert isinstance(save, WrittenSpan)
    assert isinstance(epoch, WrittenSpan)
    assert (save.name, epoch.name) == ("checkpoint.save", "train.epoch")
    assert save.parent == epoch.id != ""
    assert epoch.begin_s == (BEGAN + 10 * SECOND).timestamp()
    assert epoch.end_s - epoch.begin_s == 60
    (mark,) = epoch.marks
    assert (mark.name, mark.text) == ("early_stopping", "patience 3, best 0.25")
    assert mark.time_s == (BEGAN + 69 * SECOND).timestamp()


@pytest.mark.spec("RUN-3")
def test_objects_stand_among_other_text_of_a_job(tmp_path: Path) -> None:
    inside = indented(trained).splitlines(keepends=True)
    inside.insert(3, "loss 0.5 at step 7\n")
    text = "Loading data\n" + "".join(inside) + "\n{not JSON}\ndone\n" + lines(trained)
    found, missing = read(written(tmp_path, text))
    assert len(found) == 4
    assert missing == (
        "1 line could not be read",
        "passed over: 3 lines without a span",
    )


@pytest.mark.parametrize("indent", [None, 2, "\t"])
def test_a_list_of_objects_is_read_too(tmp_path: Path, indent: int | str | None) -> None:
    text = json.dumps([console_span(), console_span()], indent=indent)
    if indent is None:
        text = text.replace("}, {", "},\n{").replace("[{", "[\n{", 1).replace("}]", "}\n]")
    found, missing = read(written(tmp_path, text))
    assert len(found) == 2, missing
    assert missing == ()


@pytest.mark.spec("RUN-3")
@FORMS
def test_a_cut_file_is_read_as_far_as_it_goes(tmp_path: Path, form: Form) -> None:
    text = form(trained)
    found, missing = read(written(tmp_path, text + text[: len(text) // 3]))
    assert len(found) == 2
    assert missing == ("1 line could not be read",)


def test_a_writer_that_was_killed_costs_one_object(tmp_path: Path) -> None:
    text = indented(trained)
    found, missing = read(
        written(tmp_path, text[: len(text) // 3].rpartition("\n")[0] + "\n" + text)
    )
    assert len(found) == 2
    assert missing == ("1 line could not be read",)


@pytest.mark.spec("RUN-3")
@pytest.mark.parametrize(
    ("attributes", "count", "reason"),
    [
        ({"slurm.job.id": "42"}, 2, ()),
        ({"slurm.job.id": "43"}, 0, "left out: 2 records of another job"),
        (JOB | {"slurm.cluster.name": "other"}, 0, "left out: 2 records of another job"),
        (JOB | {"lattice.allocation.attempt": 2}, 0, "left out: 2 records of another job"),
        (JOB | {"lattice.allocation.attempt": "many"}, 2, ()),
    ],
    ids=["job", "other-job", "other-cluster", "later-attempt", "no-number"],
)
@FORMS
def test_only_what_names_this_job_is_its_own(
    tmp_path: Path, form: Form, attributes: Mapping[str, Any], count: int, reason: Any
) -> None:
    found, missing = read(written(tmp_path, form(trained, attributes)))
    assert len(found) == count
    assert reason in missing or missing == reason
    assert all(each.is_named for each in found)


@pytest.mark.spec("RUN-3")
@FORMS
def test_spans_that_name_no_job_are_marked(tmp_path: Path, form: Form) -> None:
    found, missing = read(written(tmp_path, form(trained, {"service.name": "train"})))
    assert [each.is_named for each in found] == [False, False]
    assert missing == ()


def test_a_job_of_another_time_with_the_same_number_is_another(tmp_path: Path) -> None:
    def long_ago(tracer: Tracer) -> None:
        one_span(tracer, "step", BEGAN - 100 * SECOND, BEGAN + 10 * SECOND)

    found, missing = read(written(tmp_path, lines(long_ago)))
    assert found == []
    assert missing == ("no span is of this job", "left out: 1 record of another time")


@pytest.mark.spec("RUN-3")
def test_log_records_are_marks(tmp_path: Path) -> None:
    log = {
        "body": "memory grows by 2 MB a step",
        "severity_number": 13,
        "severity_text": "WARN",
        "attributes": None,
        "timestamp": "2026-11-15T13:00:30.000000Z",
        "observed_timestamp": "2026-11-15T13:00:30.100000Z",
        "resource": {"attributes": JOB},
        "event_name": "",
    }
    event = log | {"event_name": "memory.drift", "timestamp": None}
    older = log | {
        "severity_number": "<SeverityNumber.WARN: 13>",
        "resource": "BoundedAttributes({})",
    }
    text = "".join(json.dumps(each, indent=4) + "\n" for each in (log, event, older))
    found, missing = read(written(tmp_path, text))
    assert missing == ()
    marks = [each.record for each in found]
    assert all(isinstance(each, WrittenMark) for each in marks)
    shown = [(each.name, each.is_log, each.text) for each in marks if isinstance(each, WrittenMark)]
    assert shown == [
        ("warn", True, log["body"]),
        ("memory.drift", False, log["body"]),
        ("warn", True, log["body"]),
    ]
    assert [each.is_named for each in found] == [True, True, False]


@pytest.mark.parametrize("form", [indented_logs, otlp_log_lines])
def test_log_records_of_the_sdk_itself_are_marks(tmp_path: Path, form: Form) -> None:
    text = form(logged(BEGAN + SECOND, "slow disk"))
    text += form(logged(BEGAN + 2 * SECOND, "2 MB a step", name="memory.drift"))
    found, missing = read(written(tmp_path, text))
    assert missing == ()
    assert [each.is_named for each in found] == [True, True]
    assert [each.record for each in found] == [
        WrittenMark("warn", (BEGAN + SECOND).timestamp(), "slow disk", is_log=True),
        WrittenMark("memory.drift", (BEGAN + 2 * SECOND).timestamp(), "2 MB a step", is_log=False),
    ]


@pytest.mark.spec("RUN-3")
def test_log_records_of_a_collector_are_marks(tmp_path: Path) -> None:
    attributes = [{"key": "slurm.job.id", "value": {"stringValue": "42"}}]
    records = [
        {
            "timeUnixNano": "1794747630000000000",
            "severityNumber": 17,
            "severityText": "ERROR",
            "body": {"stringValue": "no space left"},
        },
        {
            "observedTimeUnixNano": 1794747631000000000,
            "eventName": "early_stopping",
            "attributes": [{"key": "patience", "value": {"intValue": "3"}}],
        },
        {"timeUnixNano": "0"},
    ]
    line = {
        "resourceLogs": [
            {"resource": {"attributes": attributes}, "scopeLogs": [{"logRecords": records}]}
        ]
    }
    found, missing = read(written(tmp_path, json.dumps(line)))
    assert [each.record[:1] + each.record[2:] for each in found] == [
        ("error", "no space left", True),
        ("early_stopping", "patience 3", False),
    ]
    assert missing == ("1 line could not be read",)


def test_an_exception_is_shown_by_its_type_and_message(tmp_path: Path) -> None:
    attributes = {
        "exception.type": "ValueError",
        "exception.message": "nan",
        "exception.escaped": 0,
    }
    event = {"name": "exception", "timestamp": "2026-11-15T13:00:12Z", "attributes": attributes}
    found, _ = read(written(tmp_path, json.dumps(console_span(events=[event]))))
    assert isinstance(found[0].record, WrittenSpan)
    assert found[0].record.marks[0].text == "ValueError: nan"


@pytest.mark.parametrize(
    "more",
    [
        {"start_time": None},
        {"end_time": None},
        {"start_time": "2026-11-15T13:00:30Z"},
        {"start_time": "-2026-11-15T13:00:00Z"},
        {"start_time": "1000000000-01-01T00:00:00Z"},
        {"start_time": "0001-01-01T00:00:00+14:00"},
        {"start_time": "2026-11-15T13:00:10Z" + " " * 100},
        {"start_time": 5},
        {"name": ["step"]},
        {"context": "0x2"},
    ],
    ids=[
        *("no-start", "no-end", "ends-first", "negative", "far-year", "first-year", "long-time"),
        *("number", "list", "context"),
    ],
)
def test_a_span_without_proper_times_is_counted(tmp_path: Path, more: dict[str, Any]) -> None:
    text = f"{json.dumps(console_span(**more))}\n{json.dumps(console_span())}\n"
    found, missing = read(written(tmp_path, text))
    assert len(found) == 1
    assert missing == ("1 line could not be read",)


@pytest.mark.parametrize(
    "times",
    [
        ("0", "1794747630000000000"),
        ("-5", "1794747630000000000"),
        ("1794747630000000000", "1794747620000000000"),
        ("9" * 19, "9" * 30),
        (10**18, 10**19),
        ("9" * 5000, "9" * 5000),
        ("1e18", "1e19"),
        ("٣", "٤"),
    ],
    ids=["zero", "negative", "ends-first", "far", "large", "digits", "float", "other-digits"],
)
def test_otlp_times_have_bounds(tmp_path: Path, times: tuple[object, object]) -> None:
    span = {"name": "s", "startTimeUnixNano": times[0], "endTimeUnixNano": times[1]}
    text = json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]})
    found, missing = read(written(tmp_path, text))
    assert found == []
    assert any("could not be read" in each for each in missing) or any(
        "another time" in each for each in missing
    )


HOSTILE = {
    "depth": b'{"resource":' + b"[" * 200_000 + b"]" * 200_000 + b"}",
    "objects": b'{"a":' * 200_000,
    "attributes": b'{"name":"s","context":{},"start_time":"2026-11-15T13:00:10Z",'
    b'"end_time":"2026-11-15T13:00:10Z","resource":{"attributes":' + b"[" * 50_000 + b"]}}",
    "digits": b'{"resourceSpans":[{"scopeSpans":[{"spans":[{"startTimeUnixNano":'
    + b"9" * 100_000
    + b"}]}]}]}",
    "infinite": b'{"resourceSpans":[{"scopeSpans":[{"spans":[{"startTimeUnixNano":1e999}]}]}]}',
    "bytes": bytes(range(256)) * 100,
    "surrogate": b'{"name":"\\ud800","context":{},"start_time":"2026-11-15T13:00:10Z"}',
    "no-utf8": b'{"name":"\xff\xfe"}',
    "braces": b"{\n" * 10_000,
    "empty": b"",
    "nothing": b"null\n[]\n{}\n7\n\n",
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
def test_hostile_content_costs_itself_alone(tmp_path: Path, content: bytes) -> None:
    text = content + b"\n" + lines(trained).encode()
    found, _ = read(written(tmp_path, text))
    assert len(found) == 2


def test_text_is_bounded(tmp_path: Path) -> None:
    event = {
        "name": "e" * 500,
        "timestamp": "2026-11-15T13:00:12Z",
        "attributes": {"k" * 500: "v" * 500, "n": 10**30, "d": {"a": [1] * 500}},
    }
    span = console_span(name="n" * 5000, parent_id="p" * 5000, events=[event] * 1500)
    found, _ = read(written(tmp_path, json.dumps(span)))
    record = found[0].record
    assert isinstance(record, WrittenSpan)
    assert max(map(len, (record.name, record.parent))) == LONGEST_SPAN_NAME
    assert len(record.marks) == 1000
    assert len(record.marks[0].name) == LONGEST_SPAN_NAME
    assert 0 < len(record.marks[0].text) <= LONGEST_MARK_TEXT


def test_an_object_that_is_too_long_is_passed_over(tmp_path: Path) -> None:
    limits = SpanFileLimits(object_bytes=2000)
    long = json.dumps(console_span(name="x" * 5000))
    tall = json.dumps(console_span(links=list(range(2000))), indent=4)
    text = f"{long}\n{tall}\n{json.dumps(console_span())}\n"
    found, missing = read(written(tmp_path, text), limits=limits)
    assert len(found) == 1
    assert any(each.startswith("2 lines could not be read") for each in missing)


@pytest.mark.parametrize("block_bytes", [1, 7, 100, 1999, 4096])
def test_blocks_of_a_file_may_end_anywhere(tmp_path: Path, block_bytes: int) -> None:
    limits = SpanFileLimits(object_bytes=2000, block_bytes=block_bytes)
    long = json.dumps(console_span(name="x" * 9000))
    good = json.dumps(console_span())
    tall = json.dumps(console_span(), indent=4)
    text = f"{good}\n{long}\n{long}\n{tall}\r\n\nloss 1\n{good}\n{long}"
    found, missing = read(written(tmp_path, text), limits=limits)
    assert len(found) == 3
    assert missing == ("3 lines could not be read", "passed over: 1 line without a span")


def test_size_count_and_files_have_bounds(tmp_path: Path) -> None:
    text = (json.dumps(console_span()) + "\n") * 5000
    file = written(tmp_path, text)
    found, missing = read(file, limits=SpanFileLimits(records=10))
    assert len(found) == 10
    assert missing == ("only the first 10 records are shown",)
    found, missing = read(file, limits=SpanFileLimits(size_bytes=100_000))
    assert 0 < len(found) < 5000
    assert missing == (f"{file} was not read to its end: it is too large",)
    written(tmp_path, "{}", "second.json")
    _, missing = read(tmp_path, limits=SpanFileLimits(files=1))
    assert "only the first 1 files are read" in missing


def test_a_folder_has_its_files_and_the_number_of_the_job(tmp_path: Path) -> None:
    folder = tmp_path / "42"
    folder.mkdir()
    for name in ("rank-0.json", "rank-1.jsonl", "notes.txt"):
        written(folder, lines(trained), name)
    found, missing = read(f"{tmp_path}/%j")
    assert len(found) == 4
    assert missing == ()
    (tmp_path / "empty").mkdir()
    found, (reason,) = read(tmp_path / "empty")
    assert found == []
    assert "no file that ends in .json" in reason


def test_what_is_no_file_is_named_and_not_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.json"
    os.mkfifo(pipe)
    link = tmp_path / "link.json"
    link.symlink_to("/dev/zero")
    found, missing = read(pipe, link, tmp_path / "none.json", written(tmp_path, lines(trained)))
    assert len(found) == 2
    assert missing == (
        f"{pipe}: it is no file",
        f"{link}: it is no file",
        f"{tmp_path / 'none.json'}: No such file or directory",
    )


def test_one_decoder_serves_any_number_of_resources() -> None:
    decoder = RecordDecoder()
    for number in range(2500):
        resource = {"attributes": {"slurm.job.id": str(number)}}
        text = json.dumps(console_span(resource=resource)).encode()
        ((job, _),) = decoder.records(text)
        assert job is not None
        assert job.job_id == str(number)
