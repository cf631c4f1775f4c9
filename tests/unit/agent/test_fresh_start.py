"""An agent executes itself again before it holds its first data key."""

from __future__ import annotations

import pytest

from lattice.agent.fresh_start import FreshStart


def test_the_first_key_is_left_to_the_process_after_a_fresh_start() -> None:
    stops: list[str] = []
    fresh = FreshStart(is_overwriting=lambda: False, why_never=lambda: "")
    fresh.on_wanted(lambda: stops.append("stop"))
    assert not fresh.wanted
    assert not fresh.may_hold_keys()
    assert not fresh.may_hold_keys()
    assert fresh.wanted
    assert stops == ["stop"], "it stops once"
    assert fresh.lacks() == ()


def test_a_process_that_overwrites_takes_keys() -> None:
    fresh = FreshStart(is_overwriting=lambda: True, why_never=lambda: "")
    assert fresh.may_hold_keys()
    assert not fresh.wanted
    fresh.execute()


def test_a_node_where_that_is_impossible_takes_no_keys_and_says_why() -> None:
    fresh = FreshStart(is_overwriting=lambda: False, why_never=lambda: "that takes glibc")
    fresh.on_wanted(lambda: pytest.fail("it must not stop again and again"))
    assert not fresh.may_hold_keys()
    assert not fresh.wanted
    (lack,) = fresh.lacks()
    assert lack.startswith("sensitive work is not collected here: ")
    assert lack.endswith("(that takes glibc)")
