"""Which allocations a piece of code reads: a walk over all of them shows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from lattice.domain.allocation import Allocation


@contextmanager
def visited_jobs() -> Iterator[set[int]]:
    """The ids of the jobs of which anything is read meanwhile."""
    visited: set[int] = set()

    def read(self: Allocation, name: str) -> Any:
        visited.add(object.__getattribute__(self, "job_id"))
        return object.__getattribute__(self, name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Allocation, "__getattribute__", read)
        yield visited
