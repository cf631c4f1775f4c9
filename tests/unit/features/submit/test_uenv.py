"""Images for whole jobs, as options of the site's plugin for Slurm."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.base.config import ConfigReport
from lattice.base.errors import UsageError
from lattice.features.submit.model import SubmitRequest
from lattice.features.submit.section import UenvSection, judge_uenv
from lattice.features.submit.service.uenv import UenvPlugin, is_unknown_option, uenv_options
from lattice.server.config.load import check_server_config

ONE = UenvSection(image_option="--uenv").plugin
OWN = UenvPlugin(image_option="--image", view_option="--env-view", tools_option="--tools")


def options(
    plugin: UenvPlugin = ONE, *, uenv: str = "", view: str = "", tools: str = ""
) -> tuple[str, ...]:
    request = SubmitRequest(script="#!/bin/sh\n", uenv=uenv, view=view, tools_uenv=tools)
    return uenv_options(request, plugin)


@pytest.mark.spec("ALLOC-5")
def test_each_value_goes_to_the_option_of_the_site() -> None:
    assert options() == ()
    assert options(uenv="prgenv-gnu/24.11:v1@daint%gh200", view="default") == (
        "--uenv=prgenv-gnu/24.11:v1@daint%gh200",
        "--view=default",
    )
    assert options(OWN, uenv="a.squashfs", view="v", tools="t.squashfs") == (
        "--image=a.squashfs",
        "--env-view=v",
        "--tools=t.squashfs",
    )


@pytest.mark.spec("ALLOC-5")
@pytest.mark.parametrize(
    ("uenv", "tools", "option"),
    [
        ("", "/i/t.squashfs", "--uenv=/i/t.squashfs:/user-tools"),
        ("a:v1", "forge/25:v1", "--uenv=a:v1,forge/25:v1:/user-tools"),
        ("a", "/i/t.squashfs:/opt/tools", "--uenv=a,/i/t.squashfs:/opt/tools"),
    ],
)
def test_tools_are_one_more_image_where_the_plugin_has_no_option_for_them(
    uenv: str, tools: str, option: str
) -> None:
    assert options(uenv=uenv, tools=tools) == (option,)


@pytest.mark.spec("ALLOC-5")
@pytest.mark.parametrize("asked", [{"uenv": "a"}, {"tools": "a"}, {"view": "a"}])
def test_a_site_without_a_plugin_refuses(asked: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="has no plugin that mounts a uenv") as refused:
        options(UenvSection().plugin, **asked)
    assert "uenv.image_option" in (refused.value.hint or "")


@pytest.mark.threat("profile-gate")
@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"view": "v"}, "belongs to a uenv"),
        ({"uenv": "a b"}, "can't be 'a b'"),
        ({"uenv": "-a"}, "can't be"),
        ({"uenv": "a\n--wrap=x"}, "can't be"),
        ({"uenv": "$(id)"}, "can't be"),
        ({"uenv": "a", "view": "'v'"}, "can't be"),
        ({"uenv": "a\0"}, "can't be"),
        ({"uenv": "a" * 3000}, "longer than 2048"),
        ({"tools": "a,b"}, "takes one image"),
    ],
)
def test_other_values_are_refused(asked: dict[str, str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        options(ONE, **asked)


def test_a_plugin_without_views_takes_none() -> None:
    with pytest.raises(UsageError, match="has no views"):
        options(UenvPlugin(image_option="--uenv", view_option=""), uenv="a", view="v")


@pytest.mark.threat("profile-gate")
@given(st.text(), st.text(), st.text())
def test_a_value_never_becomes_an_option_of_its_own(uenv: str, view: str, tools: str) -> None:
    try:
        found = options(OWN, uenv=uenv, view=view, tools=tools)
    except UsageError:
        return
    assert found == tuple(
        f"{option}={value}"
        for option, value in (("--image", uenv), ("--env-view", view), ("--tools", tools))
        if value
    )
    assert all(word.isascii() and word.isprintable() and " " not in word for word in found)


@pytest.mark.parametrize(
    ("text", "unknown"),
    [
        ("sbatch: unrecognized option '--uenv=a'\nTry \"sbatch --help\"", True),
        ("sbatch: unrecognized option '--constraints=a'", False),
        ("sbatch: error: uenv: a can't be read", False),
    ],
)
def test_a_refusal_of_an_option_is_told_apart(text: str, unknown: bool) -> None:
    assert is_unknown_option(text, ONE) is unknown


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"image_option": "uenv"}, "must be a long option"),
        ({"image_option": "--u env"}, "must be a long option"),
        ({"image_option": "--view"}, "is the same as another"),
        ({"tools_mount": "user-tools"}, "must be an absolute path"),
        ({"image_option": "--uenv", "tools_option": "--tools-uenv"}, ""),
    ],
)
def test_names_are_checked(keys: dict[str, str], problem: str) -> None:
    report = ConfigReport("server.yaml")
    judge_uenv(UenvSection(**keys), report)
    assert [problem in each for each in report.problems] == ([True] if problem else [])


def test_the_section_is_checked_with_the_rest(tmp_path: Path) -> None:
    file = tmp_path / "server.yaml"
    file.write_text("slurm: {rest_url: 'unix:/s'}\nuenv: {image_option: uenv}\n")
    (problem,) = check_server_config(file, {}).problems
    assert "uenv.image_option" in problem
