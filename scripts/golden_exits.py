"""Exit codes by name: of errors, and of commands whose code says how a job or a bound is.

Commands run in the recording shell with a made-up state, so the code is what they really return.
"""

from __future__ import annotations

import gc
import io
import os
import tempfile
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from enum import Enum
from pathlib import Path

from lattice.agent.main import main as agent
from lattice.base.errors import STATUS
from lattice.cli.main import main as lattice
from lattice.domain.allocation import State
from lattice.domain.logs import GapCause
from lattice.domain.measured import Shown
from lattice.domain.metric import Provenance
from lattice.features.diag.model import Verdict
from lattice.features.logs.model import NoteKind
from lattice.helper.main import _BAD_CONFIGURATION
from lattice.server.main import main as server
from scripts.golden_answers import Maker, run

_BOUND = next(iter(Shown)).value
_BY_VALUE: tuple[tuple[str, str, type[Enum]], ...] = (
    ("wait 1 --timeout 1", "state of the job", State),
    ("wait 1 --timeout 1 --exit-status", "state of the job", State),
    ("logs 1 --exit-status", "state of the job", State),
    ("watch 1 --exit-status", "state of the job", State),
    ("logs 1", "note in the stream", NoteKind),
    ("logs 1", "cause of a gap in the stream", GapCause),
    ("top 1", "source of the figures", Provenance),
    ("compare 1 2", "source of the figures", Provenance),
    ("diag 1 --exit-status", "verdict", Verdict),
)
_SINGLE = (
    "watch 1 --until ended",
    f"watch 1 --until '{_BOUND}>99'",
    "admin drain n1 --wait --timeout 1",
    f"compare 1 2 --fail-on '{_BOUND}>0.5'",
    f"compare 1 2 --fail-on '{_BOUND}>2'",
)


class _Broken(io.StringIO):
    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self._error = error

    def write(self, text: str) -> int:  # noqa: ARG002
        raise self._error


def exits() -> str:
    """Errors with their three codes, then the programs, then the commands."""
    lines = ["error: gRPC, HTTP, exit code"]
    lines += [f"  {kind.code}: {row.grpc}, {row.http}, {row.exit}" for kind, row in STATUS.items()]
    lines += ["", "programs", *_programs()]
    for line, what, kind in _BY_VALUE:
        lines += ["", f"lattice {line}, by {what}"]
        by_code: dict[int, list[str]] = {}
        for each in kind:
            by_code.setdefault(run(line, Maker(each))[1], []).append(each.value)
        lines += [f"  {code}: {', '.join(names)}" for code, names in sorted(by_code.items())]
    lines += ["", *(f"lattice {line}: {run(line, Maker())[1]}" for line in _SINGLE)]
    return "\n".join(lines) + "\n"


def _programs() -> Iterator[str]:
    for what, error in (("pipe closed", BrokenPipeError()), ("interrupted", KeyboardInterrupt())):
        with redirect_stdout(_Broken(error)), redirect_stderr(io.StringIO()):
            code = lattice(["--help"])
        gc.enable()  # the program turns it off
        yield f"  lattice, {what}: {code}"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "bad.yaml"
        file.write_text("no_such_key: 1\n")
        for name, main in (("lattice-server", server), ("lattice-agent", agent)):
            with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
                code = main(["--config", os.fspath(file), "--check-config"])
            yield f"  {name}, bad configuration: {code}"
    yield f"  lattice-helper, bad options: {_BAD_CONFIGURATION}"
