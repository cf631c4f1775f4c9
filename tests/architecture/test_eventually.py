"""Waiting in tests: until it is so, and with what was last seen if it never is."""

from __future__ import annotations

import pytest

from tests.eventually import eventually, eventually_async


def test_it_reads_until_the_value_is_as_wanted() -> None:
    values = iter([1, 2, 3, 4])
    assert eventually(lambda: next(values), lambda value: value == 3, pause_s=0) == 3
    assert next(values) == 4


def test_what_never_comes_fails_with_the_last_value() -> None:
    with pytest.raises(AssertionError, match=r"not within 0 s; last seen: 'almost'"):
        eventually(lambda: "almost", lambda value: value == "there", patience_s=0)


async def test_a_coroutine_is_awaited() -> None:
    values = iter(["", "", "there"])

    async def read() -> str:
        return next(values)

    assert await eventually_async(read) == "there"
    with pytest.raises(AssertionError, match="last seen: 0"):
        await eventually_async(lambda: 0, patience_s=0)
