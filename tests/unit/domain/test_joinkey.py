"""The line with which a node joins, and lines that are none."""

from __future__ import annotations

import pytest

from lattice.domain.joinkey import BadJoinKey, JoinKey, read_join_key, written

KEY = JoinKey(servers=("lattice1:50051", "[fd00::1]:50051"), token="secret", ca="-----BEGIN…")


@pytest.mark.spec("AUTH-9")
def test_it_is_one_line_that_survives_being_copied() -> None:
    line = written(KEY)
    assert line.isascii()
    assert line.isprintable()
    assert read_join_key(f"  {line}\n") == KEY
    assert "secret" not in repr(KEY)


@pytest.mark.spec("AUTH-9")
def test_a_line_that_was_cut_or_is_something_else() -> None:
    line = written(KEY)
    for end in range(0, len(line), 7):
        with pytest.raises(BadJoinKey):
            read_join_key(line[:end])
    for text in ("a token", line.replace("-1.", "-2."), line + "é", line + "A" * 100_000):
        with pytest.raises(BadJoinKey):
            read_join_key(text)
