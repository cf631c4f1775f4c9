"""A test may only claim a promise that exists."""

from __future__ import annotations

from scripts.spec import promises, proofs


def test_every_claimed_promise_exists() -> None:
    assert set(proofs()) == set(promises())


def test_promises_are_numbered_once() -> None:
    assert len(promises()) == len(set(promises()))
