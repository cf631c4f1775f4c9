"""The pages about Slurm's releases say what the newest results say."""

from __future__ import annotations

import pytest

from scripts import slurm_page
from scripts.nightly import SHOWN
from scripts.slurm_page import PAGE, STORIES, areas_of, by_function, pages, table


@pytest.mark.parametrize("page", [PAGE, STORIES], ids=lambda page: page.name)
def test_a_page_is_fresh(page) -> None:
    hint = "`python -m scripts.slurm_page` writes it from bench/results"
    assert page.read_text() == pages()[page], hint


def test_every_part_has_a_title() -> None:
    assert set(slurm_page._TITLES) == set(SHOWN)


def test_a_test_has_failed_if_one_of_its_cases_has() -> None:
    assert by_function(
        {
            "tests.e2e.test_a::test_one[x]": "passed",
            "tests.e2e.test_a::test_one[y]": "failed",
            "tests.e2e.test_a::test_two[x]": "skipped",
            "tests.e2e.test_a::test_two[y]": "passed",
        }
    ) == {
        "tests/e2e/test_a.py::test_one": "failed",
        "tests/e2e/test_a.py::test_two": "passed",
    }


def test_a_test_is_in_the_areas_of_its_promises() -> None:
    story = "tests/e2e/test_private_data.py::test_an_operator_right_is_enough_for_a_server"
    assert areas_of(story) == {"ALLOC", "AUTH"}
    assert areas_of("tests/e2e/test_none.py::test_none") == {""}


def test_every_area_of_a_story_has_a_row() -> None:
    stories = [each for each in slurm_page.marked_tests() if "story" in each.marks]
    named = {area for each in stories for area in areas_of(each.name)}
    assert named <= set(slurm_page._AREAS)


def test_a_table() -> None:
    assert table(["a", "b"], [["1", "2"]]) == "| a | b |\n| --- | --- |\n| 1 | 2 |"
