from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import lattice
from lattice.base.command import COMMON, Option
from lattice.base.text import cells
from lattice.cli.catalogue import GROUPS, commands_of, root_help
from lattice.cli.command_table import COMMANDS
from lattice.cli.main import main
from lattice.cli.run import load
from lattice.cli.tree import as_click, root

NAMES = [name for name, _, _ in COMMANDS]


@pytest.mark.parametrize(("name", "summary", "place"), COMMANDS)
def test_catalogue_agrees_with_the_declarations(name: str, summary: str, place: str) -> None:
    command = load(place)
    assert (command.name, command.summary) == (name, summary)


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"]])
def test_root_help_is_the_same_with_and_without_click(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 0
    direct = capsys.readouterr().out
    assert direct == root_help()
    assert direct == CliRunner().invoke(root({}), ["--help"], prog_name="lattice").output


def test_root_help_names_every_command_on_80_columns() -> None:
    lines = root_help().splitlines()
    assert all(cells(line) <= 80 for line in lines)
    named = [(name, summary) for name, summary, _ in commands_of("")]
    for name, summary in (*named, *GROUPS):
        assert re.search(rf"^  {name} +{re.escape(summary)}$", root_help(), re.MULTILINE)


@pytest.mark.parametrize(("group", "summary"), GROUPS)
def test_help_of_a_group_names_its_commands(group: str, summary: str) -> None:
    text = CliRunner().invoke(root({}), [group, "--help"], prog_name="lattice").output
    assert text.startswith(f"Usage: lattice {group}")
    assert summary.partition(";")[0] in text
    assert commands_of(group)
    for name, words, _ in commands_of(group):
        assert re.search(rf"^  {name} +{re.escape(words)}$", text, re.MULTILINE)


def test_every_command_of_two_words_is_in_a_group() -> None:
    groups = {name for name, _ in GROUPS}
    assert {name.split(" ")[0] for name, _, _ in COMMANDS if " " in name} == groups


def test_a_mistyped_command_of_a_group_is_recognised(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["admin", "drian", "n1"]) == 2
    assert "Did you mean `lattice admin drain`?" in capsys.readouterr().err


@pytest.mark.parametrize("name", NAMES)
def test_help_of_a_command_has_purpose_examples_and_permission(name: str) -> None:
    command = load({each: place for each, _, place in COMMANDS}[name])
    text = CliRunner().invoke(root({}), [*name.split(), "--help"], prog_name="lattice").output
    assert text.startswith(f"Usage: lattice {name}")
    assert "Examples:" in text
    assert "Permission:" in text
    assert all(example in text for example, _ in command.examples)
    for option in [*COMMON, *(each for each in command.params if isinstance(each, Option))]:
        assert max(option.flags, key=len) in text


def test_examples_can_be_read() -> None:
    from lattice.base.fast_start import argv

    for _, _, place in COMMANDS:
        command = load(place)
        for example, _ in command.examples:
            words = shlex.split(example.split(" | ")[0].split(" && ")[0])
            if words[0] == "lattice":
                rest = words[1 + len(command.name.split()) :]
                assert argv.read(command, rest) is not None, example


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"lattice {lattice.__version__}\n"


@pytest.mark.spec("CLI-1")
def test_help_loads_neither_click_nor_any_feature() -> None:
    code = (
        "import sys; from lattice.cli.main import main; main(['--help']);"
        "heavy = {'click', 'msgspec', 'yaml', 'ssl', 'dataclasses', 'typing', 'asyncio'};"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules);"
        "assert not [name for name in sys.modules if name.startswith('lattice.features')]"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_reading_a_command_loads_no_click() -> None:
    code = (
        "import sys; from lattice.cli.main import main; main(['status']);"
        "heavy = {'click', 'msgspec', 'yaml', 'httpx2', 'asyncio', 'http.client', 'pathlib'};"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    environment = {"LATTICE_API_URL": "http://127.0.0.1:9", "LATTICE_TOKEN": "x"}
    subprocess.run(
        [sys.executable, "-c", code], check=True, env=environment, stderr=subprocess.DEVNULL
    )


def test_a_terminal_is_asked_for_before_anything_large_is_loaded() -> None:
    code = (
        "import sys; from lattice.cli.main import main; main(['attach', '7', '--', 'true']);"
        "heavy = {'click', 'msgspec', 'yaml', 'asyncio', 'pathlib', 'dataclasses', 'inspect',"
        "'hashlib', 'termios', 'lattice.client.wire'};"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    environment = {"LATTICE_API_URL": "http://127.0.0.1:9", "LATTICE_TOKEN": "x"}
    subprocess.run(
        [sys.executable, "-c", code], check=True, env=environment, stderr=subprocess.DEVNULL
    )


def test_declarations_become_click_commands_of_the_same_name() -> None:
    for name, _, place in COMMANDS:
        assert as_click(load(place)).name == name


def test_reference_page_is_fresh() -> None:
    from scripts.reference import page

    path = Path(__file__).resolve().parents[3] / "docs/reference/cli.md"
    assert path.read_text() == page(), "run scripts/reference.py"
