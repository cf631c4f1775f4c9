"""What `lattice admin doctor` shows, its exit code, and what only the client can check."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from lattice import __version__
from lattice.base.errors import LoginRequired, Unavailable
from lattice.base.text import cells
from lattice.domain.vcluster import Vcluster, VclusterKind
from lattice.features.doctor.command import ANSWERS, CLOCK, TLS, VERSION, doctor
from tests.fakes.shell import NOW, FakeShell
from tests.unit.features.doctor.test_examiner import Site

_PATH = "/v1/admin/doctor"


def check(name: str, state: str = "ok", **more: str) -> dict[str, Any]:
    group = name.partition(".")[0]
    usual = {"id": name, "group": group, "title": name.replace(".", " "), "state": state}
    return usual | {"evidence": "42 ms", "remedy": ""} | more


def examination(*checks: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "version": __version__,
        "replica": "s1",
        "taken": NOW.isoformat(),
        "took_s": 0.0,
        "counts": {"ok": 0, "warning": 0, "failed": 0, "unknown": 0, "off": 0},
        "checks": list(checks),
        **more,
    }


def shell_of(*checks: dict[str, Any], width: int | None = None, **more: Any) -> FakeShell:
    return FakeShell({_PATH: examination(*checks, **more)}, width=width)


@pytest.mark.spec("CLI-2", "OPS-8")
@pytest.mark.parametrize(
    ("states", "code"),
    [
        (("ok", "off"), 0),
        (("ok", "warning", "unknown"), 110),
        (("warning", "failed", "unknown"), 111),
        (("ok", "unknown", "off"), 112),
    ],
)
def test_the_exit_code_says_how_bad_it_is(states: tuple[str, ...], code: int) -> None:
    checks = [check(f"slurm.c{number}", state) for number, state in enumerate(states)]
    assert doctor(shell_of(*checks), all=False) == code


@pytest.mark.spec("OPS-8")
def test_a_problem_is_shown_with_what_to_do_and_the_rest_in_a_line_a_group() -> None:
    shell = shell_of(
        check("slurm.controller"),
        check(
            "slurm.accounting",
            "failed",
            title="slurmdbd answers",
            evidence="no answer within 3 s",
            remedy="On slurmdbd's host: start it.",
        ),
        check("state.reads"),
        check("state.redundancy", "off", evidence="no high availability"),
    )
    assert doctor(shell, all=False) == 111
    assert shell.paged.splitlines() == [
        "✗ 8 checks: 6 ok, 1 failed, 1 off",
        f"  server s1, version {__version__}, examined in 0.0 s",
        "✗ Slurm         1 ok, 1 to see below",
        "  ✗ failed: slurmdbd answers  (slurm.accounting)",
        "      no answer within 3 s",
        "      → On slurmdbd's host: start it.",
        "✓ Agreed state  1 ok, 1 off",
        "✓ This machine  4 ok",
    ]


def test_all_shows_every_check_with_what_was_measured() -> None:
    shell = shell_of(check("slurm.controller"), check("state.redundancy", "off", evidence="alone"))
    doctor(shell, all=True)
    lines = shell.paged.splitlines()
    assert "  ✓ ok: slurm controller  (slurm.controller)" in lines
    assert "      42 ms" in lines
    assert "  — off: state redundancy  (state.redundancy)" in lines


def test_hostile_text_is_inert_and_fits_the_terminal() -> None:
    bad = check("agents.helper", "failed", evidence="\x1b[31m" + "long " * 60, remedy="\x07do it")
    shell = shell_of(bad, width=60)
    doctor(shell, all=False)
    assert "\x1b" not in shell.paged
    assert "\x07" not in shell.paged
    assert all(cells(line) <= 60 for line in shell.paged.splitlines())


def test_a_document_has_the_checks_of_this_machine_too() -> None:
    shell = FakeShell({_PATH: examination(check("slurm.controller"))}, output="json")
    assert doctor(shell, all=False) == 0
    found = json.loads(shell.out)
    assert found["counts"] == {"ok": 5, "warning": 0, "failed": 0, "unknown": 0, "off": 0}
    machine = [each["id"] for each in found["checks"] if each["group"] == "this_machine"]
    assert machine == [
        "this_machine.server",
        "this_machine.clock",
        "this_machine.tls",
        "this_machine.version",
    ]


def test_clock_plain_text_and_version_of_this_machine_are_checked() -> None:
    shell = shell_of(taken=(NOW - timedelta(seconds=300)).isoformat(), version="7.0.1")
    shell.server_url = "http://lattice1.example.com:8080"
    assert doctor(shell, all=False) == 110
    assert "300.0 s ahead of the server's" in shell.paged
    assert "chronyc makestep" in shell.paged
    assert "the token can be read on its way" in shell.paged
    assert f"client {__version__}, server 7.0.1" in shell.paged
    shell = shell_of()
    shell.server_url = "http://127.0.0.1:8080"
    assert doctor(shell, all=False) == 0


def test_a_slow_answer_does_not_look_like_a_wrong_clock() -> None:
    shell = shell_of()

    def slow() -> dict[str, Any]:
        shell.clock.passed_s += 8.0
        return examination(taken=(NOW + timedelta(seconds=3)).isoformat(), took_s=3.0)

    shell.routes = {_PATH: slow}
    assert doctor(shell, all=False) == 0


def test_a_server_that_is_away_is_a_check_that_failed() -> None:
    away = Unavailable("https://server can't be reached.", hint="Is it running?")
    shell = FakeShell({_PATH: away})
    assert doctor(shell, all=False) == 111
    assert "✗ 1 checks: 1 failed" in shell.paged
    assert "→ Is it running?" in shell.paged
    with pytest.raises(LoginRequired):
        doctor(FakeShell({_PATH: LoginRequired("no token")}), all=False)


async def test_the_page_for_operators_names_every_check() -> None:
    site = Site()
    site.views.views += (Vcluster("secret", VclusterKind.SENSITIVE, "batch"),)
    server = {each.id for each in (await site.examine()).checks}
    text = (Path(__file__).parents[4] / "docs/operate/doctor.md").read_text()
    machine = {each.id for each in (ANSWERS, CLOCK, TLS, VERSION)}
    first_cells = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    named = {name for cell in first_cells for name in re.findall(r"`(\w+\.\w+)`", cell)}
    assert named == server | machine
