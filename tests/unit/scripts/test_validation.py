"""The acceptance checks: each is a line, one that fails hides no other, and there are enough."""

from __future__ import annotations

from typing import Any

import pytest

from lattice.base.errors import Unavailable
from scripts.validation import Answer, Fault, Skipped, run
from scripts.validation_checks import CHECKS, LAST
from scripts.validation_jobs import JOB_CHECKS


def test_a_check_that_fails_hides_no_other() -> None:
    def fails(error: Exception) -> Any:
        def act(_site: Any) -> str:
            raise error

        return act

    lines: list[str] = []
    nowhere: Any = None
    checks = (
        ("one", lambda _site: "42 ms"),
        ("two", fails(Fault("it is \x1b[31mred"))),
        ("three", fails(Skipped("plain HTTP"))),
        ("four", fails(Unavailable("no answer"))),
        ("five", fails(KeyError("defect"))),
        ("six", lambda _site: ""),
    )
    assert run(nowhere, checks, lines.append) == 3
    assert [line[0] for line in lines] == ["✓", "✗", "—", "✗", "✗", "✓"]
    assert lines[0] == "✓ one: 42 ms"
    assert "\x1b" not in lines[1]
    assert lines[-1] == "✓ six"


@pytest.mark.spec("OPS-8")
def test_there_are_thirty_checks_even_without_a_job() -> None:
    titles = [title for title, _ in (*CHECKS, *JOB_CHECKS, *LAST)]
    assert len(titles) == len(set(titles))
    assert len(CHECKS) + len(LAST) >= 30
    assert len(titles) >= 45


def test_an_error_is_compared_without_the_id_of_its_request() -> None:
    one = Answer(404, {}, b'{"error": {"code": "not_found", "request_id": "a"}}')
    other = Answer(404, {}, b'{"error": {"code": "not_found", "request_id": "b"}}')
    assert one.error == other.error == {"code": "not_found"}
    for body in (b"<html>", b"{}"):
        with pytest.raises(Fault):
            _ = Answer(404, {}, body).error
