"""The direct reading of argument lists against click's reading of the same lists."""

from __future__ import annotations

from typing import Any

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.base.command import COMMON, Argument, Command, Option
from lattice.base.fast_start import argv
from lattice.cli.command_table import COMMANDS
from lattice.cli.run import load
from lattice.cli.tree import as_click

ALL = {name: load(place) for name, _, place in COMMANDS}


def by_click(command: Command, words: list[str]) -> dict[str, Any] | None:
    made = as_click(command)
    try:
        context = made.make_context(command.name, list(words))
    except (click.UsageError, click.exceptions.Exit):
        return None
    return dict(context.params)


def words_for(command: Command) -> st.SearchStrategy[list[str]]:
    options = [*COMMON, *(param for param in command.params if isinstance(param, Option))]
    arguments = [param for param in command.params if isinstance(param, Argument)]
    plain = [
        "12345",
        "12345_7",
        "@last",
        "n1",
        "x",
        "",
        "table",
        "5m",
        "running",
        "R,PD",
        "10",
        "bash",
    ]
    params: list[Option | Argument] = [*options, *arguments]
    choices = [choice for each in params for choice in each.choices]
    value = st.sampled_from([*plain, *choices, "-5", "--", "-"])
    flags = [flag for option in options for flag in option.flags]
    word = st.one_of(
        st.sampled_from(flags),
        value,
        st.tuples(st.sampled_from(flags), value).map("=".join),
        st.tuples(st.sampled_from(flags), value).map("".join),
        st.sampled_from(["--help", "-h", "--unknown", "-qv", "--", "--out", "--no-colour"]),
    )
    pair = st.tuples(st.sampled_from(flags), value).map(list)
    return st.lists(st.one_of(word.map(lambda each: [each]), pair), max_size=5).map(
        lambda parts: [each for part in parts for each in part]
    )


@pytest.mark.spec("CLI-1")
@pytest.mark.parametrize("name", sorted(ALL))
@given(data=st.data())
def test_what_is_read_directly_is_read_as_click_reads_it(name: str, data: st.DataObject) -> None:
    command = ALL[name]
    words = data.draw(words_for(command))
    values = argv.read(command, words)
    if values is not None:
        assert values == by_click(command, words)


@pytest.mark.parametrize(
    "words",
    [
        ["status"],
        ["status", "12345"],
        ["status", "-o", "json", "--all"],
        ["watch", "7", "--until", "running"],
        ["status", "--state=running", "-s", "failed,PD", "--watch"],
        ["history", "--since", "7d", "-n", "20"],
        ["nodes", "--by", "partition", "--utc"],
        ["wait", "1", "2", "--timeout", "5m", "--exit-status"],
        ["login", "--flow", "device"],
        ["whoami", "-q", "-v", "--api-url", "https://x"],
        ["attach", "12345", "-n", "n2"],
        ["attach", "12345", "--", "ls", "-l", "--", "x"],
        ["attach", "--", "nvidia-smi", "-L"],
        ["attach", "-c", "--", "12345", "--", "ls"],
        ["session", "-G", "1", "--keep", "--", "python", "-c", "1"],
    ],
)
def test_the_usual_lists_are_read_directly(words: list[str]) -> None:
    values = argv.read(ALL[words[0]], words[1:])
    assert values is not None, "this would load click"
    assert values == by_click(ALL[words[0]], words[1:])


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["-qv"],
        ["--outpu", "json"],
        ["-o"],
        ["-o", "xml"],
        ["-ojson"],
        ["--quiet=yes"],
        ["a", "b"],
        ["--state", "sleeping"],
        ["-o", "--all"],
    ],
)
def test_anything_odd_is_left_to_click(words: list[str]) -> None:
    assert argv.read(ALL["status"], words) is None
