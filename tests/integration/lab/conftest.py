"""One lab with every engine for the tests of the lab itself; they have their own names."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lab.fixtures import lab_name
from lab.laboratory import ENGINES, Lab


@pytest.fixture(scope="package")
def engines() -> Iterator[Lab]:
    """A lab with all engines and no lattice-server."""
    own = Lab(lab_name("selftest"), parts=ENGINES)
    try:
        own.up()
        yield own
    finally:
        own.down(purge=True)
