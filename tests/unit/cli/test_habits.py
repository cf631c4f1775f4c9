"""The page of Slurm habits names commands and options that exist, and every command once."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lattice.base.fast_start import argv
from lattice.cli.command_table import COMMANDS
from lattice.cli.run import load

PAGE = (Path(__file__).resolve().parents[3] / "docs/guide/slurm-habits.md").read_text()
SAID = re.findall(r"`lattice ([^`]+)`", PAGE)
PLACES = {name: place for name, _, place in COMMANDS}


@pytest.mark.spec("ALLOC-6")
@pytest.mark.parametrize("words", SAID)
def test_every_command_on_the_page_can_be_typed(words: str) -> None:
    name, *rest = words.split()
    assert name in PLACES, f"there is no lattice {name}"
    assert argv.read(load(PLACES[name]), rest) is not None, words


@pytest.mark.spec("ALLOC-6")
@pytest.mark.parametrize(
    "habit",
    ["squeue", "sacct", "sinfo", "sstat", "srun --pty", "tail -f", "scancel", "sbatch", "salloc"],
)
def test_every_habit_is_there(habit: str) -> None:
    assert habit in PAGE


def test_commands_about_jobs_and_nodes_are_all_mapped() -> None:
    assert {words.split()[0] for words in SAID} >= {"status", "history", "nodes", "wait", "whoami"}
