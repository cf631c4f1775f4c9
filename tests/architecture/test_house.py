"""The house rules that a script can count: the map is complete, and words get plainer.

`just house` prints the counts, `just house --list sentences` what is counted. A count here may
only fall: lower the number with the change that earns it.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import house  # noqa: E402 - a script, not a package

MOST_BANNED_WORDS = 29
MOST_GERUNDS = 0
MOST_REPEATED_CLASSES = 0
MOST_LONG_SENTENCES = 0
LONGEST_FUNCTION = 66


def test_names_use_plain_words() -> None:
    assert sum(house.banned_words().values()) <= MOST_BANNED_WORDS, house.banned_words()


def test_modules_are_nouns() -> None:
    assert len(house.gerunds()) <= MOST_GERUNDS, house.gerunds()


def test_a_public_class_name_stands_once() -> None:
    assert len(house.repeated_classes()) <= MOST_REPEATED_CLASSES, house.repeated_classes()


def test_sentences_of_docstrings_are_short() -> None:
    found = house.long_sentences()
    assert len(found) <= MOST_LONG_SENTENCES, "\n".join(found)


def test_functions_are_short() -> None:
    length, where = house.longest_function()
    assert length <= LONGEST_FUNCTION, where


def test_the_map_names_every_feature() -> None:
    drawn = set(re.findall(r"^\| `(\w+)` \|", (ROOT / "ARCHITECTURE.md").read_text(), re.MULTILINE))
    there = {each.parent.name for each in (ROOT / "src/lattice/features").glob("*/__init__.py")}
    assert there <= drawn
    assert {each for each in drawn if (ROOT / "src/lattice/features" / each).is_dir()} == there


def test_the_map_names_every_layer() -> None:
    drawn = set(re.findall(r"^  (\w+)/ ", (ROOT / "ARCHITECTURE.md").read_text(), re.MULTILINE))
    there = {each.parent.name for each in (ROOT / "src/lattice").glob("*/__init__.py")}
    assert drawn == there
