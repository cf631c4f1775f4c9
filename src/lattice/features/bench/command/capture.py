"""`lattice bench capture`: the facts and figures of this machine, in one file."""

from __future__ import annotations

import json
import re
from pathlib import Path

from lattice import __version__
from lattice.base.command import Command, Option
from lattice.base.errors import UsageError
from lattice.base.portable.machine_facts import read_machine
from lattice.base.shell import Shell
from lattice.base.text import inert
from lattice.domain.machine_facts import read_facts
from lattice.domain.statistics.mean_difference import LEAST_SAMPLES
from lattice.features.bench.command.runner import CpuPressure, Runner, here
from lattice.features.bench.model import Capture, document_of
from lattice.features.bench.render import capture_text

FOLDER = Path("dist") / "benchmarks"
USUAL_REPEAT = 12
_MOST_REPEAT = 200
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", re.ASCII)


def read_repeat(text: str) -> int:
    """Parse a number of rounds. Raises `UsageError`."""
    if not text.isdecimal() or not LEAST_SAMPLES <= int(text) <= _MOST_REPEAT:
        raise UsageError(
            f"{text!r} is no number of rounds.",
            hint=f"From {LEAST_SAMPLES}, below which there is no interval, to {_MOST_REPEAT}.",
        )
    return int(text)


def capture(
    shell: Shell,
    *,
    name: str | None,
    to: str | None,
    disk: str | None,
    repeat: int | None,
    rdma_peer: str | None,
    no_tools: bool,
) -> int:
    """Measure this machine, and write the file."""
    named = name or here()
    if not _NAME.fullmatch(named):
        raise UsageError(
            f"{inert(named)!r} is no name.", hint="--name with letters, digits, dots and dashes."
        )
    now = shell.clock.now()
    path = Path(to) if to else FOLDER / f"{named}-{now:%Y%m%dT%H%M%SZ}.json"
    _make_room(path)
    rounds = repeat or USUAL_REPEAT
    folder = disk or str(path.parent)
    shell.note(f"Measuring {named} in {rounds} rounds; the disk is that of {folder}.")

    def progress(number: int) -> None:
        if number:
            shell.note(f"Round {number} of {rounds}.")

    runner = Runner(folder, tools=not no_tools, rdma_peer=rdma_peer or "")
    facts, pressure = read_machine(), CpuPressure()
    measures = runner.run(rounds, progress)
    facts["waited_percent"] = pressure.waited()
    result = Capture(
        name=named, time=now, version=__version__, facts=read_facts(facts), measures=measures
    )
    document = document_of(result)
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.write_text(json.dumps(document, indent=1) + "\n", "utf-8")
        partial.replace(path)
    except OSError as error:
        raise UsageError(f"Can't write {path}: {error.strerror}.") from None
    shell.write(capture_text(result, shell.style))
    shell.note(f"Written to {path}.")
    return 0


def _make_room(path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"Can't make {path.parent}: {error.strerror}.", hint="Choose a file with --to."
        ) from None


CAPTURE = Command(
    "bench capture",
    summary="Measure this machine into a file",
    text="Writes the facts of this machine (kind, processors, memory, huge pages, GPU driver, "
    "network ports) and its figures: copying memory, processor, disk, TCP. It runs fio, with "
    "--readonly, and ib_write_bw where they are installed. Run it on the host and in its guest, "
    "then `lattice bench compare`. It needs no server.",
    run=capture,
    params=(
        Option("--name", metavar="NAME", help="Of the machine in the file; its host name if not."),
        Option("--to", metavar="FILE", help=f"The file; {FOLDER}/NAME-TIME.json if not given."),
        Option("--disk", metavar="FOLDER", help="On the disk to measure; the file's if not given."),
        Option(
            "--repeat",
            metavar="N",
            read=read_repeat,
            help=f"Rounds, each with every measure once; {USUAL_REPEAT} if not given.",
        ),
        Option(
            "--rdma-peer",
            metavar="HOST",
            help="A host where somebody runs `ib_write_bw`; this machine itself if not given.",
        ),
        Option("--no-tools", help="Run neither fio nor ib_write_bw."),
    ),
    examples=(
        ("lattice bench capture --name host", "on the host"),
        ("lattice bench capture --name guest", "in its guest"),
    ),
    permission="none: it asks no server",
    alone=True,
)
