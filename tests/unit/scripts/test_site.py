"""The site of the documents: what mkdocs gets, and a whole build."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from scripts.site import BUILD, ROOT, anchor, indented, nav, pages

FENCE = "```"


def test_anchors_are_those_of_forges() -> None:
    assert anchor("What is `stored`, and where?") == "what-is-stored-and-where"
    assert anchor("Let's — see") == "lets--see"


def test_lists_are_indented_by_four_spaces() -> None:
    text = f"Two:\n- one\n  goes on\n\n  {FENCE}\n  code\n  {FENCE}\n- two\n  - in it\nEnd"
    code = f"    {FENCE}\n    code\n    {FENCE}\n"
    assert indented(text) == f"Two:\n\n- one\n    goes on\n\n{code}\n- two\n    - in it\nEnd\n"


def test_numbered_lists_keep_their_code() -> None:
    assert indented(f"1. a\n\n   {FENCE}\n   x\n   {FENCE}\n2. b\n").splitlines() == [
        *("1. a", "", f"    {FENCE}", "    x", f"    {FENCE}", "", "2. b"),
    ]


def test_code_stays_as_it_is() -> None:
    code = f"{FENCE}\n- no list\n   x\n{FENCE}\n"
    assert indented(code) == code


def test_the_navigation_names_pages_once() -> None:
    named = re.findall(r"'([^']+\.md)'", str(nav()))
    assert len(named) == len({*named})
    assert {*named} <= {each.as_posix() for each in pages()}


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_site_is_built_strictly_and_fetches_nothing() -> None:
    done = subprocess.run(["just", "site"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    home = (BUILD / "site" / "index.html").read_text()
    assert "docs/operate/install.html" in home
    assert Path(BUILD / "site" / "search" / "search_index.json").exists()
