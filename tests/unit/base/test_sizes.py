from __future__ import annotations

import pytest

from lattice.base.sizes import size_text


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (12 * 2**20, "12 MiB"),
        (2**60, "1024 PiB"),
    ],
)
def test_sizes_have_at_most_three_digits(size: int, text: str) -> None:
    assert size_text(size) == text
