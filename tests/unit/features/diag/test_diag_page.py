"""The page and the command: the verdict first, 80 columns, no unknown that looks well."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from lattice.base.errors import UsageError
from lattice.base.fast_start import argv
from lattice.base.style import Style
from lattice.base.text import cells
from lattice.domain.jobfacts import RankStack, StackFrame, StackLanguage
from lattice.domain.node_snapshot import NodeUnreachable
from lattice.features.diag.command import DIAG
from lattice.features.diag.model import Verdict
from lattice.features.diag.render import page, stacks
from tests.fakes.shell import COMMON_OPTIONS, FakeShell
from tests.unit.features.diag.site import DiagSite
from tests.unit.features.diag.wards import Ward, healthy, mount, refact

PATH = "/v1/allocations/42/diagnostics"


def sick_ward() -> Ward:
    ward = healthy()
    refact(ward[2], mounts=(mount(answered_s=None, waited_s=40.0), mount("/home")))
    ward[1].memory = 0.96 * ward[1].limit
    return ward


async def told(ward: Ward | None = None, **query: Any) -> dict[str, Any]:
    found = json.loads(msgspec.json.encode(await DiagSite(ward).diagnose(**query)))
    assert isinstance(found, dict)
    return found


def run(shell: FakeShell, *words: str) -> int:
    values = argv.read(DIAG, words)
    assert values is not None
    return DIAG.run(
        shell, **{name: each for name, each in values.items() if name not in COMMON_OPTIONS}
    )


@pytest.mark.spec("SRC-2", "DIAG-1")
async def test_what_is_not_known_is_a_dash_with_its_reason_and_never_a_tick() -> None:
    ward = healthy()
    ward[1].silence = NodeUnreachable("n2", "its agent is lost")
    text = page(await DiagSite(ward).diagnose(), Style(width=80))
    lines = text.splitlines()
    assert lines[1].startswith("— unknown: nothing sick was found, but not everything")
    assert "  — Nodes that answer on n2: its agent is lost" in lines
    assert not any("✓" in each and "agent is lost" in each for each in lines)
    assert all("3/4 nodes" in each for each in lines if "✓ ok Memory" in each)


@pytest.mark.spec("DIAG-1")
async def test_the_verdict_stands_first_then_what_is_sick_with_evidence_and_remedy() -> None:
    text = page(await DiagSite(sick_ward()).diagnose(), Style(width=80))
    lines = text.splitlines()
    assert lines[1].startswith("✗ bad: 2 findings: /scratch (nfs4), Memory")
    joined = " ".join(text.split())
    assert "/scratch has not answered for 40 s on n3, from store:/scratch." in joined
    assert "→ Ask for more next time (`sbatch --mem=80G`)" in joined
    assert text.index("✗ bad  /scratch") < text.index("! attention  Memory") < text.index("✓ ok")
    assert "source: host_local_probe" in text


@pytest.mark.parametrize("everything", [False, True])
@pytest.mark.parametrize("width", [40, 80, 120])
async def test_no_line_is_wider_than_the_terminal(width: int, everything: bool) -> None:
    for ward in (healthy(), sick_ward()):
        told = await DiagSite(ward).diagnose()
        for style in (Style(width=width), Style(width=width, glyphs=False)):
            for line in page(told, style, everything=everything).splitlines():
                assert cells(line) <= width, line


@pytest.mark.spec("CLI-1")
async def test_without_glyphs_there_are_words_all_the_same() -> None:
    text = page(await DiagSite(sick_ward()).diagnose(), Style(width=80, glyphs=False))
    assert "x bad:" in text
    assert "+ ok" in text
    assert not set("✓✗→") & set(text)


@pytest.mark.spec("DIAG-1")
async def test_who_measured_stands_at_every_line_or_at_the_head_of_its_part() -> None:
    told = await DiagSite().diagnose()
    source = ""
    seen: list[tuple[str, str]] = []
    for line in page(told, Style(width=80)).splitlines():
        head, found, named = line.partition("  source: ")
        if found:
            assert head in {"Job", "Network", "Storage", "GPUs", "Memory", "Processors"}
            source = named
        elif "✓ ok " in line:
            own = line.rpartition("  [")[2].removesuffix("]") if line.endswith("]") else source
            seen.append((line.split("ok ")[1][:26].strip(), own))
    assert dict(seen)["Switch groups"] == "slurm_topology"
    well = [each for each in told.findings if each.verdict is Verdict.OK]
    assert sorted(own for _, own in seen) == sorted(each.source for each in well)


@pytest.mark.spec("DIAG-1")
async def test_all_shows_evidence_and_source_of_what_is_well() -> None:
    told = await DiagSite().diagnose()
    short, whole = (page(told, Style(width=80), everything=each) for each in (False, True))
    assert len(whole.splitlines()) > len(short.splitlines())
    assert "Source: slurm_topology." in whole


@pytest.mark.spec("DIAG-5")
async def test_commands_name_the_job_and_the_sick_nodes() -> None:
    ward = healthy()
    refact(ward[2], clock_ahead_s=2.0)
    ward[1].throttled = {next(iter(ward[1].cards)): ("hw_thermal",)}
    text = " ".join(page(await DiagSite(ward).diagnose(), Style(width=80)).split())
    assert "`sbatch --exclude=n2`" in text
    assert "--exclude=NODE" not in text


async def test_text_from_outside_can_not_drive_the_terminal() -> None:
    ward = healthy()
    nasty = "/x\x1b[2J\u202egnp"
    refact(ward[2], mounts=(mount(nasty, answered_s=None, waited_s=4.0),))
    text = page(await DiagSite(ward, name="\x1b]0;x\x07").diagnose(), Style(width=80))
    assert all(each.isprintable() for each in text.replace("\n", ""))


@pytest.mark.spec("CLI-2")
async def test_the_exit_code_tells_the_verdict_if_it_is_asked_to() -> None:
    silent = healthy()
    silent[0].silence = NodeUnreachable("n1", "its agent is lost")
    late = healthy()
    refact(late[2], clock_ahead_s=2.0)
    for ward, code in ((healthy(), 0), (late, 110), (sick_ward(), 111), (silent, 112)):
        answer = await told(ward)
        assert run(FakeShell({PATH: answer}), "42", "--exit-status") == code
        assert run(FakeShell({PATH: answer}), "42") == 0


@pytest.mark.spec("DIAG-1")
async def test_each_area_is_asked_for() -> None:
    answer = await told()
    for flag in ("network", "storage", "gpu"):
        shell = FakeShell({f"{PATH}/{flag}": answer})
        run(shell, "42", f"--{flag}")
        assert shell.calls[0].path == f"{PATH}/{flag}"
    shell = FakeShell({PATH: answer})
    run(shell, "42", "--network", "--gpu")
    assert shell.calls[0].params == (("areas", "network,gpu"),)


@pytest.mark.spec("SRC-2")
async def test_json_has_null_and_the_reason() -> None:
    ward = healthy()
    ward[1].silence = NodeUnreachable("n2", "its agent is lost")
    found = next(each for each in (await told(ward))["findings"] if each["verdict"] == "unknown")
    assert (found["measured"], found["reason"], found["lack"]) == (
        None,
        "its agent is lost",
        "silent",
    )


@pytest.mark.spec("DIAG-6")
async def test_stacks_are_a_page_of_their_own() -> None:
    site = DiagSite()
    meets = (
        StackFrame("all_reduce", "/x/site-packages/t.py", 9),
        StackFrame("step", "train.py", 212),
    )
    site.stacks.told = [
        RankStack(
            node="n1",
            rank=rank,
            pid=rank + 5,
            language=StackLanguage.PYTHON,
            frames=meets if rank else (StackFrame("read", "loader.py", 88),),
        )
        for rank in range(4)
    ]
    picture = await site.picture()
    text = stacks(picture, Style(width=80))
    assert "! rank 0: read, loader.py:88  (unlike the others)  n1" in text
    assert "· ranks 1-3: all_reduce, train.py:212" in text
    assert all(cells(each) <= 80 for each in text.splitlines())
    shell = FakeShell(
        {"/v1/allocations/42/stacks": json.loads(msgspec.json.encode(picture))}, width=80
    )
    assert run(shell, "42", "--stacks") == 0
    assert "rank 0" in shell.paged
    for flag in ("--gpu", "--exit-status"):
        with pytest.raises(UsageError):
            run(shell, "42", "--stacks", flag)
