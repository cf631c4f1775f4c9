"""`lattice compare`: words first, 80 columns, no number that nobody measured; and its gate."""

from __future__ import annotations

import csv
import io
import json
from contextlib import suppress
from html.parser import HTMLParser
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.base.errors import LatticeError, NotFound, UsageError
from lattice.base.fast_start import argv
from lattice.base.style import Style
from lattice.base.text import cells
from lattice.domain.measured import Shown
from lattice.features.compare import operations
from lattice.features.compare.command import COMPARE, FailOnVerdict, judge, read_bound
from lattice.features.compare.model import Comparison
from lattice.features.compare.render.commas import commas
from lattice.features.compare.render.page import page
from lattice.features.compare.render.plain import comparison_text
from lattice.features.compare.render.plot import COLUMNS, plot
from tests.fakes.cluster import allocation
from tests.fakes.shell import COMMON_OPTIONS, NOW, FakeShell
from tests.unit.features.compare.runs import CPU, GPU, Site, course

PATH = "/v1/compare"
NAMED = ((41, "train-base"), (42, "train-new"), (43, "twice"), (44, "twice"))
EVIL = "<script>alert(1)</script>\x1b]0;owned\x07\x1b[2J"


def run(shell: FakeShell, *words: str) -> int:
    values = argv.read(COMPARE, words)
    assert values is not None
    return COMPARE.run(
        shell, **{name: each for name, each in values.items() if name not in COMMON_OPTIONS}
    )


def told(answer: Comparison) -> dict[str, Any]:
    found = json.loads(msgspec.json.encode(answer))
    assert isinstance(found, dict)
    return found


async def slower(**facts: Any) -> Comparison:
    """B drops from 90 to 79 after 14 min 30 s."""
    site = Site()
    site.job(42, **facts)
    site.measure(41, course(90, seed=1))
    site.measure(42, course(90, seed=2, after_s=870, then=79))
    site.measure(41, course(400, seed=3), CPU)
    site.measure(42, course(400, seed=4), CPU)
    return await site.compare()


def joined(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("error", [NotFound("No allocation 50 of yours."), UsageError("no")])
def test_an_error_passes(error: LatticeError) -> None:
    with pytest.raises(type(error)):
        run(FakeShell({PATH: error}), "41", "50")


@pytest.mark.spec("COMPARE-4")
async def test_ids_names_and_last_are_understood() -> None:
    answer = told(await slower())
    listed = {"allocations": [], "sources": []}
    shell = FakeShell({PATH: answer, "/v1/allocations": listed})
    run(shell, "41", "42@1794702411", "--metric", "gpu_utilization,cpu_utilization")
    assert dict(shell.calls[-1].params) == {
        "ids": "41,42@1794702411",
        "metrics": "gpu_utilization,cpu_utilization",
        "align": "relative",
    }
    for word in ("train", "@last"):
        with pytest.raises(NotFound):
            run(shell, "41", word)
        assert shell.calls[-1].path == "/v1/allocations"


@pytest.mark.spec("COMPARE-4")
async def test_a_name_stands_for_the_only_one_so_called() -> None:
    own = [allocation(number, "alice", "research", name=name) for number, name in NAMED]
    listed = {"allocations": json.loads(msgspec.json.encode(own)), "sources": []}
    shell = FakeShell({PATH: told(await slower()), "/v1/allocations": listed})
    run(shell, "train-base", "train-new")
    assert dict(shell.calls[-1].params)["ids"] == f"{own[0].ref},{own[1].ref}"
    with pytest.raises(UsageError) as refused:
        run(shell, "41", "twice")
    assert "43, 44" in refused.value.message


@pytest.mark.spec("CLI-2")
def test_one_is_not_enough_and_nine_are_too_many() -> None:
    for words in (("41",), tuple(map(str, range(1, 10)))):
        with pytest.raises(UsageError) as refused:
            run(FakeShell({}), *words)
        assert "baseline" in (refused.value.hint or "")
    with pytest.raises(UsageError):
        operations.compare_metrics("41", "no id")
    with pytest.raises(UsageError) as refused:
        operations.compare_metrics("41", "42", metrics=["gpu"])
    assert "gpu_utilization" in (refused.value.hint or "")


@pytest.mark.spec("COMPARE-2", "COMPARE-1")
async def test_words_come_first() -> None:
    shell = FakeShell({PATH: told(await slower())}, width=80)
    assert run(shell, "41", "42") == 0
    lines = shell.out.splitlines()
    assert max(map(cells, lines)) <= 80
    text = joined(shell.out)
    sentence = text.index("B uses 12 % less GPU (−1")
    assert sentence < text.index("METRIC")
    assert ", from 00:14:" in text[sentence : sentence + 80]
    for words in ("95 %", "sure", "Smallest differences that 80 of 100", "gpu_utilization"):
        assert words in text, (words, shell.out)
    assert "●" in text
    assert "×" in text
    assert "B parts at 00:14:" in text


@pytest.mark.story
@pytest.mark.spec("COMPARE-4")
async def test_what_differs_in_what_was_asked_for_is_shown() -> None:
    shell = FakeShell({PATH: told(await slower(nodes="n7", cpus=32))}, width=80)
    run(shell, "41", "42")
    body = shell.out.split("DIFFERS")[1]
    assert "n7" in body
    assert "32" in body
    assert "partition" not in body


@pytest.mark.spec("SRC-2")
async def test_what_nobody_measured_is_a_dash_with_its_reason() -> None:
    site = Site()
    site.measure(41, course(90, seed=1))
    answer = await site.compare()
    shell = FakeShell({PATH: told(answer)}, width=80)
    run(shell, "41", "42")
    line = next(each for each in shell.out.splitlines() if each.startswith("gpu_utilization"))
    assert line.count("—") == 3
    assert "unknown" in line
    assert "the metric store has nothing of this run" in joined(shell.out)
    assert "can't be compared with A" in joined(shell.out)
    assert next(csv.DictReader(io.StringIO(commas(answer))))["mean"]
    assert list(csv.DictReader(io.StringIO(commas(answer))))[1]["mean"] == ""


@pytest.mark.spec("CLI-2")
async def test_nothing_measured_is_its_own_exit_code() -> None:
    shell = FakeShell({PATH: told(await Site().compare())}, width=80)
    assert run(shell, "41", "42") == 76


@pytest.mark.spec("COMPARE-1", "COMPARE-2")
async def test_several_runs_have_a_line_each() -> None:
    site = Site()
    site.job(43)
    for number in (41, 42, 43):
        site.measure(number, course(90 - 10 * (number == 43), seed=number))
    shell = FakeShell({PATH: told(await site.compare("41", "42", "43"))}, width=80)
    run(shell, "41", "42", "43")
    assert max(map(cells, shell.out.splitlines())) <= 80
    assert "C uses 11 % less GPU" in shell.out
    assert "No difference was found between A and B" in joined(shell.out)


@pytest.mark.spec("COMPARE-1", "CLI-1")
async def test_without_colour_and_glyphs_it_is_plain() -> None:
    answer = await slower()
    text = comparison_text(answer, Style(width=80, glyphs=False), NOW, every_plot=True)
    drawn = plot(answer, answer.metrics[0], Style(width=80, glyphs=False))
    assert drawn.isascii()
    assert "o" in drawn
    assert "x" in drawn
    assert "\x1b" not in text
    assert "−" not in text
    coloured = plot(answer, answer.metrics[0], Style(width=80, colour=True))
    assert "\x1b[" in coloured


@pytest.mark.spec("COMPARE-1")
async def test_the_plot_keeps_its_size_and_its_holes() -> None:
    site = Site()
    site.measure(41, lambda at_s: None if 1200 <= at_s < 2400 else 50.0)
    site.measure(42, course(90, seed=2))
    answer = await site.compare()
    drawn = plot(answer, answer.metrics[0], Style(width=80, glyphs=False)).splitlines()
    assert all(len(each) <= 80 for each in drawn)
    (line,) = (each.partition("|")[2] for each in drawn[1:] if "o" in each)
    assert line[: COLUMNS // 3].strip("o") == ""
    assert line[COLUMNS // 3 + 1 : 2 * COLUMNS // 3 - 1].strip() == ""


@pytest.mark.spec("COMPARE-4")
async def test_text_from_outside_can_do_nothing() -> None:
    answer = await slower(
        name="=cmd|" + EVIL, nodes=EVIL, command=EVIL, container=EVIL, work_dir='"><b>'
    )
    text = comparison_text(answer, Style(width=80), NOW)
    assert "\x1b" not in text

    class Tags(HTMLParser):
        seen: set[str] = set()  # noqa: RUF012
        inside: list[tuple[str, str | None]] = []  # noqa: RUF012

        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            self.seen.add(tag)
            self.inside.extend(attrs)

    document = page(answer)
    tags = Tags()
    tags.feed(document)
    assert not tags.seen & {"script", "b", "link", "img", "iframe", "a", "object"}
    assert not any(name.startswith("on") or name in {"src", "href"} for name, _ in tags.inside)
    assert "\x1b" not in document
    assert "default-src 'none'" in document
    names = [each["name"] for each in csv.DictReader(io.StringIO(commas(answer)))]
    assert any(each.startswith("'=cmd") for each in names)
    assert "\x1b" not in commas(answer)


@pytest.mark.spec("COMPARE-4", "CLI-1")
@pytest.mark.parametrize("form", ["json", "yaml", "csv", "html", "wide"])
async def test_every_form_can_be_asked_for(form: str) -> None:
    values = argv.read(COMPARE, ["41", "42", "-o", form])
    assert values is not None
    assert values["output"] == form
    shell = FakeShell({PATH: told(await slower())}, output=form, width=80)
    assert run(shell, "41", "42") == 0
    begins = {"json": "{", "yaml": "{", "csv": "metric,", "html": "<!doctype html>", "wide": "RUN"}
    assert shell.out.startswith(begins[form])
    if form == "wide":
        assert "cpu_utilization  ●" in shell.out


@pytest.mark.spec("COMPARE-4")
async def test_csv_has_a_line_a_metric_and_run() -> None:
    every = list(csv.DictReader(io.StringIO(commas(await slower()))))
    rows = [each for each in every if each["metric"]]
    assert [(each["metric"], each["run"]) for each in rows] == [
        ("gpu_utilization", "A"),
        ("gpu_utilization", "B"),
        ("cpu_utilization", "A"),
        ("cpu_utilization", "B"),
    ]
    assert float(rows[1]["since_percent"]) < -9
    assert rows[0]["percent"] == ""
    assert all(None not in each for each in every)


@pytest.mark.spec("COMPARE-4", "SRC-2")
async def test_csv_has_what_was_asked_for_and_why_something_is_not_known() -> None:
    answer = await slower(nodes="n7", time_limit_s=3600, container="/images/torch-2.9")
    rows = list(csv.DictReader(io.StringIO(commas(answer))))
    settings = {(each["setting"], each["run"]): each for each in rows if each["setting"]}
    assert len(settings) == 2 * len(answer.settings)
    assert (settings["nodes", "A"]["value"], settings["nodes", "B"]["value"]) == ("n1", "n7")
    assert settings["nodes", "A"]["differs"] == "yes"
    assert settings["partition", "B"]["differs"] == "no"
    for name, run_ in (("time_limit", "A"), ("image", "A"), ("environment", "B")):
        told_ = settings[name, run_]
        assert (told_["value"], told_["differs"]) == ("", ""), name
        assert told_["reason"], name
    assert settings["image", "B"]["value"] == "/images/torch-2.9"


@pytest.mark.spec("COMPARE-4", "SRC-2")
async def test_settings_nobody_knows_are_a_dash_with_the_reason_in_every_form() -> None:
    answer = await slower(time_limit_s=3600)
    text = joined(comparison_text(answer, Style(width=80), NOW))
    document = joined(page(answer))
    for said in (
        "— time_limit of A: Slurm does not say",
        "— image: Slurm was given no --container",
        "— environment: a job",
    ):
        assert said in text, said
        assert said in document, said
    assert "vcluster" not in text
    values = {each["name"]: each["values"] for each in told(answer)["settings"]}
    assert values["time_limit"][0] == {"value": None, "reason": "Slurm does not say"}
    assert values["image"][1]["value"] is None
    assert values["image"][1]["reason"]


@pytest.mark.spec("COMPARE-4")
async def test_other_images_and_other_limits_are_said_to_differ_in_every_form() -> None:
    site = Site()
    for number, image in ((41, "/images/torch-2.8"), (42, "/images/torch-2.9")):
        memory = number * 2**30
        site.job(number, container=image, memory_bytes=memory, node_count=1, time_limit_s=number)
        site.measure(number, course(90, seed=number))
    answer = await site.compare()
    for said in (comparison_text(answer, Style(width=120), NOW), page(answer), commas(answer)):
        for each in ("torch-2.8", "torch-2.9", "41 GiB", "42 GiB", "00:00:41"):
            assert each in said, each
    differing = {each["name"] for each in told(answer)["settings"] if each["differs"]}
    assert {"image", "memory", "memory_per_node", "time_limit"} <= differing


# The gate.


@pytest.mark.spec("CLI-2")
@pytest.mark.parametrize(
    ("text", "teaches"),
    [
        ("", "neither < nor >"),
        ("gpu_utilization", "neither < nor >"),
        ("gpu_utilization<=-5%", "only < and >"),
        ("1<gpu_utilization<2", "more than one"),
        ("gpu_utilization<", "a number behind"),
        ("gpu_utilization<-5 percent", "a number behind"),
        ("gpu_utilization<-5%%", "a number behind"),
        ("gpu_utilization<1e3", "a number behind"),
        ("gpu_utilization<٣%", "a number behind"),
        ("gpu<-5%", "no metric"),
        ("gpu_utilization<5%", "two equal runs"),
        ("memory_used>-5%", "two equal runs"),
        ("gpu_utilization<-5G", "not in bytes"),
    ],
)
def test_a_bound_that_makes_no_sense_is_explained(text: str, teaches: str) -> None:
    with pytest.raises(UsageError) as refused:
        read_bound(text)
    assert teaches in refused.value.message
    assert refused.value.hint


def test_bounds_are_read() -> None:
    bound = read_bound(" gpu_utilization < -5.5 % ")
    assert (bound.metric, bound.below, bound.value, bound.in_percent) == (
        Shown.GPU_UTILIZATION, True, -5.5, True,
    )  # fmt: skip
    assert read_bound("memory_used>2G").value == 2 * 2**30
    assert read_bound("io_latency_p99>100").in_percent is False
    assert read_bound("gpu_utilization<0").value == 0


@given(st.text(max_size=40))
def test_no_text_is_read_as_something_else(text: str) -> None:
    with suppress(UsageError):
        assert read_bound(text).metric.value in text


@pytest.mark.spec("COMPARE-2", "CLI-2")
@pytest.mark.parametrize(
    ("bound", "code", "word"),
    [
        ("gpu_utilization<-5%", 113, "broken"),
        ("gpu_utilization<-5", 113, "broken"),
        ("gpu_utilization>5%", 0, "holds"),
        ("gpu_utilization<-40%", 0, "holds"),
        ("io_read_bytes<-5%", 113, "unknown"),
        ("gpu_temperature>5%", 113, "unknown"),
    ],
)
async def test_the_gate(bound: str, code: int, word: str) -> None:
    shell = FakeShell({PATH: told(await slower())}, width=80)
    assert run(shell, "41", "42", "--fail-on", bound) == code
    said = [*shell.notes, *shell.warnings]
    assert len(said) == 1
    assert word in said[0]
    assert bound in said[0]
    assert bool(shell.warnings) == (word != "holds")
    if bound.startswith("gpu_temperature"):
        assert "gpu_temperature" in dict(shell.calls[-1].params)["metrics"]
        assert "cpu_utilization" in dict(shell.calls[-1].params)["metrics"]
    else:
        assert "metrics" not in dict(shell.calls[-1].params)


@pytest.mark.spec("COMPARE-2")
async def test_what_can_not_be_told_passes_with_a_warning_unless_it_is_to_fail() -> None:
    site = Site()
    site.measure(41, course(90, seed=1, size=30, phi=0.9))
    site.measure(42, course(90, seed=2, size=30, phi=0.9))
    answer = await site.compare()
    (judged,) = judge(read_bound("gpu_utilization<-5%"), answer)
    assert judged.verdict is FailOnVerdict.UNSURE
    for words, code in (((), 0), (("--fail-unsure",), 113)):
        shell = FakeShell({PATH: told(answer)}, width=80)
        assert run(shell, "41", "42", "--fail-on", "gpu_utilization<-5%", *words) == code
        assert "unsure" in shell.warnings[0]


@pytest.mark.spec("COMPARE-2")
async def test_a_late_drop_breaks_a_bound_that_the_whole_mean_would_not() -> None:
    site = Site()
    site.measure(41, course(90, seed=1))
    site.measure(42, course(90, seed=2, after_s=2700, then=80))
    (judged,) = judge(read_bound("gpu_utilization<-8%"), await site.compare())
    assert judged.verdict is FailOnVerdict.BROKEN
    assert "since 00:4" in judged.message


@pytest.mark.spec("COMPARE-2")
async def test_one_of_several_is_enough_to_break_it() -> None:
    site = Site()
    site.job(43)
    for number, level in ((41, 90), (42, 90), (43, 70)):
        site.measure(number, course(level, seed=number), GPU)
    answer = await site.compare("41", "42", "43")
    verdicts = [each.verdict for each in judge(read_bound("gpu_utilization<-5%"), answer)]
    assert verdicts == [FailOnVerdict.HOLDS, FailOnVerdict.BROKEN]
    shell = FakeShell({PATH: told(answer)}, width=80)
    assert run(shell, "41", "42", "43", "--fail-on", "gpu_utilization<-5%") == 113
