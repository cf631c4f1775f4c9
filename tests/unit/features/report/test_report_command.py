"""`lattice report`: one screen of 80 columns, and nothing on it that nobody measured."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from lattice.access.actor import Actor
from lattice.base.errors import DataUnavailable, LatticeError, UsageError
from lattice.base.fast_start import argv
from lattice.base.style import Style
from lattice.base.text import cells
from lattice.domain.runsummary import AccountedUse
from lattice.features.report.command import REPORT, read_attempt
from lattice.features.report.render import report_text
from tests.fakes.shell import COMMON_OPTIONS, NOW, FakeShell
from tests.unit.features.report.scripted import GIB, Site

PATH = "/v1/allocations/42/report"
ALICE = Actor(sub="sub-alice", user="alice")


def run(shell: FakeShell, *words: str) -> int:
    values = argv.read(REPORT, words)
    assert values is not None
    return REPORT.run(
        shell, **{name: each for name, each in values.items() if name not in COMMON_OPTIONS}
    )


async def told(site: Site) -> dict[str, Any]:
    answer = msgspec.json.encode(await site.service().report(ALICE, "42"))
    found = json.loads(answer)
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize(
    "error", [DataUnavailable("has not started", hint="wait"), UsageError("no")]
)
async def test_an_error_passes(error: LatticeError) -> None:
    with pytest.raises(type(error)):
        run(FakeShell({PATH: error}), "42")


async def test_the_attempt_is_asked_for() -> None:
    shell = FakeShell({PATH: await told(Site())})
    run(shell, "42", "--attempt", "3")
    assert shell.calls[0].params == (("attempt", "3"),)
    for word in ("x", "0", "-1", "٣"):
        with pytest.raises(UsageError):
            read_attempt(word)


@pytest.mark.spec("SRC-2")
async def test_what_nobody_measured_is_a_dash_with_its_reason() -> None:
    site = Site()
    site.store.silent = True
    shell = FakeShell({PATH: await told(site)}, width=80)
    assert run(shell, "42") == 0
    body = shell.out.split("USED")[1]
    for name in ("CPU time", "Memory peak", "GPU utilization", "Read"):
        line = next(each for each in body.splitlines() if each.startswith(name))
        assert "—" in line, line
    assert "the metric store does not answer (connection refused)" in _joined(shell.out)
    assert "No other advice" in shell.out or "No advice" in shell.out


@pytest.mark.spec("TOP-5")
async def test_a_whole_run_on_one_screen() -> None:
    site = Site(time_limit_s=48 * 3600)
    site.busy()
    site.store.tell("max memory_used_bytes", n1=7 * GIB, n2=8.5 * GIB)
    shell = FakeShell({PATH: await told(site)}, width=80)
    run(shell, "42")
    lines = shell.out.splitlines()
    assert len(lines) <= 40
    assert max(map(cells, lines)) <= 80
    text = _joined(shell.out)
    for words in (
        "2 nodes, 2 tasks, 16 CPUs, 4 GPUs, 100.0 GiB a node",
        "02:00:00 of 2-00:00:00 (4.2 %)",
        "8.5 GiB",
        "--mem=11G",
        "--time=02:30:00",
        "0.80 kWh",
        "2/2 nodes",
        "host_local_probe",
    ):
        assert words in text, (words, shell.out)


@pytest.mark.spec("SRC-1")
async def test_the_second_source_is_named_where_it_is_used() -> None:
    site = Site()
    site.accounting.told = AccountedUse(cpu_seconds=100.0, largest_task_bytes=float(GIB))
    shell = FakeShell({PATH: await told(site)}, width=80)
    run(shell, "42")
    line = next(each for each in shell.out.splitlines() if each.startswith("Memory peak"))
    assert "its largest task" in line
    line = next(each for each in shell.out.splitlines() if each.startswith("CPU time"))
    assert "slurm_accounting" in line


async def test_a_cpu_job_is_shown_no_gpu_lines() -> None:
    shell = FakeShell({PATH: await told(Site(gpus=None))}, width=80)
    run(shell, "42")
    assert "GPU" not in shell.out


@pytest.mark.spec("CLI-1", "SRC-2")
async def test_json_has_null_and_the_reason() -> None:
    site = Site()
    shell = FakeShell({PATH: await told(site)}, output="json")
    run(shell, "42")
    used = json.loads(shell.out)["summary"]["used"]
    assert all(each["value"] is None and each["reason"] for each in used)


async def test_text_from_outside_can_do_nothing() -> None:
    site = Site(name="x\x1b]0;owned\x07", nodes="n1\x1b[2J")
    report = await site.service().report(ALICE, "42")
    text = report_text(report, Style(width=80), NOW)
    assert "\x1b" not in text


@pytest.mark.spec("CLI-1")
async def test_without_colour_and_glyphs_it_is_plain() -> None:
    site = Site(time_limit_s=48 * 3600)
    site.busy()
    report = await site.service().report(ALICE, "42")
    text = report_text(report, Style(width=80, glyphs=False), NOW)
    assert "\x1b" not in text
    assert "→" not in text
    assert "> It took" in text


def _joined(text: str) -> str:
    return " ".join(text.split())
