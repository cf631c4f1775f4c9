"""The published schema of a guest's report has the fields that the code reads and writes."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

from lattice.base.portable import guest_program
from lattice.domain.guest_report import OF_A_CARD, OF_THE_GUEST, REASONS, VERSION, read_report

ROOT = Path(__file__).parents[3]
SCHEMA: dict[str, Any] = json.loads(
    (ROOT / "docs" / "reference" / "guest-report.schema.json").read_text()
)
CARD = SCHEMA["$defs"]["card"]["properties"]


@pytest.mark.spec("SRC-4")
def test_the_schema_names_what_the_agent_reads() -> None:
    assert SCHEMA["properties"]["version"]["const"] == VERSION == guest_program.VERSION
    assert set(SCHEMA["properties"]["figures"]["properties"]) == set(OF_THE_GUEST)
    assert set(CARD["figures"]["properties"]) == set(OF_A_CARD)
    assert tuple(CARD["throttled"]["items"]["enum"]) == REASONS


def test_the_program_prints_what_the_schema_names(capsys: pytest.CaptureFixture[str]) -> None:
    guest_program.main()
    first, text = capsys.readouterr().out.splitlines()
    assert first == guest_program.STARTED
    printed = json.loads(text)
    assert printed.keys() <= SCHEMA["properties"].keys()
    assert printed["figures"].keys() <= SCHEMA["properties"]["figures"]["properties"].keys()
    for port in printed["nics"]:
        assert port.keys() <= SCHEMA["$defs"]["port"]["properties"].keys()
    assert read_report(text.encode()).boot_id == printed["boot_id"]
    assert "machine" not in printed


@pytest.mark.spec("SLICE-2")
def test_the_program_prints_facts_of_the_machine_when_it_is_asked(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSH_ORIGINAL_COMMAND", "lattice-slice start")
    guest_program.main()
    found = read_report(capsys.readouterr().out.splitlines()[1].encode())
    assert {"vcpus", "memory_bytes", "hugepages"} <= {each.name for each in found.facts}
    assert found.uptime_s
    monkeypatch.setattr(guest_program, "FACTS", "gone.py")
    guest_program.main()
    assert read_report(capsys.readouterr().out.splitlines()[1].encode()).facts == ()


@pytest.mark.spec("SLICE-1")
def test_the_program_needs_only_an_old_python() -> None:
    source = Path(guest_program.__file__).read_text()
    tree = ast.parse(source, feature_version=(3, 8))
    names = {
        name.partition(".")[0]
        for node in ast.walk(tree)
        for name in (
            [each.name for each in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    standard = {"__future__", "collections", "ctypes", "functools", "json", "os", "select"}
    assert names <= standard | {"runpy", "signal", "socket", "sys", "time", "typing"}
