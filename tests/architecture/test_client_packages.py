"""The command line runs with its own dependencies: packages of servers and agents are extras."""

from __future__ import annotations

import subprocess
import sys

_EXTRAS = (
    "backports",
    "compression",
    "cryptography",
    "fastapi",
    "google",
    "grpc",
    "joserfc",
    "obstore",
    "prometheus_client",
    "re2",
    "structlog",
    "uvicorn",
    "uvloop",
    "websockets",
)
_IMPORT_ALL = """
import importlib, re, sys
from pathlib import Path

sys.modules.update(dict.fromkeys(sys.argv[1:]))
from lattice.cli import command_table

modules = set(re.findall(r'"(lattice[a-z_.]+):[A-Z_]+"', Path(command_table.__file__).read_text()))
for name in sorted(modules):
    importlib.import_module(name)
print(len(modules))
"""


def test_every_command_is_imported_without_the_packages_of_a_server() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _IMPORT_ALL, *_EXTRAS], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 20
