"""The reference pages say what the code says."""

from __future__ import annotations

import pytest

from scripts import reference_config


@pytest.mark.spec("OPS-7")
def test_the_references_are_fresh() -> None:
    hint = "run scripts/reference_config.py --write"
    for page, text in reference_config.pages().items():
        assert page.read_text() == text, hint
