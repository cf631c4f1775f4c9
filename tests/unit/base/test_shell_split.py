"""Command lines written as one word."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.base.errors import UsageError
from lattice.base.text import shell_split


def test_an_open_quote_is_told() -> None:
    with pytest.raises(UsageError, match="can't be split into words: No closing quotation"):
        shell_split("--comment='never closed")


@given(st.lists(st.text(), max_size=5))
def test_what_a_shell_would_be_given_comes_back(words: list[str]) -> None:
    assert shell_split(shlex.join(words)) == tuple(words)
