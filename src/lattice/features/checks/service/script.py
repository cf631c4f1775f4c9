"""The batch script of a check: a program for each node, with everything that it needs. Pure.

The program is sent with the script, because Lattice need not be installed where the job runs. The
nodes need `python3`, and nothing else.
"""

from __future__ import annotations

import base64
from importlib.resources import files

_PORTABLE = "lattice.base.portable"
_SCRIPT = """\
#!/bin/sh
# Written by lattice admin check. It measures the disk of each node and the links between them.
LATTICE_CHECK='{program}'
LATTICE_CHECK_PORT=$(python3 -c \\
    'import socket;s=socket.socket();s.bind(("",0));print(s.getsockname()[1])')
export LATTICE_CHECK LATTICE_CHECK_PORT
exec srun --ntasks-per-node=1 --kill-on-bad-exit=0 python3 -c \\
    'import base64,os;exec(base64.b64decode(os.environ.pop("LATTICE_CHECK")))' {secret}
"""
_PROGRAM = """\
import sys, types
module = types.ModuleType("measures")
exec(compile({measures!r}, "measures", "exec"), module.__dict__)
sys.modules["measures"] = module
exec(compile({check!r}, "node_check", "exec"), {{"__name__": "__main__"}})
"""


def check_script(secret: str) -> bytes:
    """The script; `secret` marks the lines of its output."""
    program = _PROGRAM.format(measures=_source("measures"), check=_source("node_check"))
    encoded = base64.b64encode(program.encode()).decode()
    return _SCRIPT.format(program=encoded, secret=secret).encode()


def _source(name: str) -> str:
    return files(_PORTABLE).joinpath(f"{name}.py").read_text("utf-8")
