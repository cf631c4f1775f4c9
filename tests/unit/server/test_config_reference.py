"""The reference page says what the code says."""

from __future__ import annotations

import pytest

from scripts import reference_config


@pytest.mark.spec("OPS-7")
def test_the_reference_is_fresh() -> None:
    written = reference_config.PAGE.read_text()
    hint = "run scripts/reference_config.py --write"
    assert written == reference_config.render(), hint
