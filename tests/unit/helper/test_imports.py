"""What runs as root brings little with it."""

from __future__ import annotations

import subprocess
import sys

import pytest

_CODE = r"""
import sys, lattice.helper.main
from lattice.base.signatures import KeyRing
KeyRing([b"\x05" * 32])
names = sorted(sys.modules)
print(*(name for name in names if name.partition(".")[0] not in sys.stdlib_module_names))
"""


@pytest.mark.spec("AUTH-9")
@pytest.mark.threat("helper")
def test_the_helper_imports_the_standard_library_alone() -> None:
    run = subprocess.run(
        [sys.executable, "-I", "-c", _CODE], capture_output=True, text=True, check=True
    )
    names = run.stdout.split()
    ours = {name.split(".")[1] for name in names if name.startswith("lattice.")}
    assert ours == {"access", "base", "domain", "helper"}
    others = {name.partition(".")[0] for name in names} - {"lattice", "__main__"}
    # pip's hook in a venv, and the distribution's for its own Python.
    assert others <= {"_distutils_hack", "sitecustomize"}
