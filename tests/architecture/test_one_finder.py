"""Every feature looks allocations up by the one finder, which knows what is sensitive."""

from __future__ import annotations

from pathlib import Path

import lattice

_SOURCES = Path(lattice.__file__).parent
_MAY = {
    "foundation/foundation.py",
    # Without a finder it lists what one user has; the server passes its own.
    "features/allocations/service.py",
}


def test_the_foundation_alone_makes_a_finder() -> None:
    makes = {
        str(each.relative_to(_SOURCES))
        for each in _SOURCES.rglob("*.py")
        if " AllocationFinder(" in each.read_text()
    }
    assert makes == _MAY


def test_the_foundation_alone_opens_access_to_output() -> None:
    makes = {
        str(each.relative_to(_SOURCES))
        for each in _SOURCES.rglob("*.py")
        if " OutputAccess(" in each.read_text()
    }
    assert makes == {"foundation/foundation.py"}
