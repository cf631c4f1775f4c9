"""Coverage-guided fuzzing of one target by Atheris (libFuzzer), in a process of its own.

A target is a module with `try_one(data)`, which raises if a property is broken. It may have
`seeds()`, `TOKENS` and a `LONGEST_CPU_S` of its own. This module finds the targets, runs one, and
reads what libFuzzer reports. libFuzzer never returns, so the parent reads the child's standard
error.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import re
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType, ModuleType

ROOT = Path(__file__).resolve().parents[2]
_HERE = Path(__file__).resolve().parent
TARGETS = _HERE / "targets"
CORPUS = _HERE / "corpus"
PACKAGE = "tests.fuzz.targets"
LONGEST_CPU_S = 3.0
"""An input that takes more processor time than this is a failure: its work has no bound.
Instrumented code takes several times as long as it does in service."""
LONGEST_INPUT_BYTES = 4096
_MOST_MEMORY_MB = 1024
_LONGEST_CALL_S = 60
"""For a call that no signal can interrupt, by the wall clock."""
_FOUND = "found-"
_PROGRESS = re.compile(r"#(\d+)\s")
_REACHED = re.compile(r"\bcov: (\d+) .*\bcorp: (\d+)")
_NOISE = re.compile(
    r"#\d+\s|#####|\"|INFO: |Dictionary: |Done \d+ runs|WARNING: Failed to find function|\s*$"
)


class TooMuchWork(BaseException):
    """An input took too long. No target can swallow it: it is not an `Exception`."""


@dataclass(slots=True)
class Outcome:
    """What one run of one target came to."""

    target: str
    seconds: float = 0.0
    runs: int = 0
    corpus: int = 0
    arcs: int = 0
    failures: list[str] = field(default_factory=list)


def names() -> list[str]:
    """Every target there is, by its module."""
    return sorted(each.stem for each in TARGETS.glob("[a-z]*.py"))


def load(name: str, package: str = PACKAGE) -> ModuleType:
    """The module of a target."""
    return importlib.import_module(f"{package}.{name}")


def inputs(name: str, package: str = PACKAGE, corpus: Path = CORPUS) -> Iterator[tuple[str, bytes]]:
    """The seeds of a target and the files of its corpus, each with a name."""
    seeds: Callable[[], Iterable[bytes]] = getattr(load(name, package), "seeds", tuple)
    for at, data in enumerate(seeds()):
        yield f"seed-{at}", data
    folder = corpus / name
    for file in sorted(folder.iterdir()) if folder.is_dir() else ():
        yield file.name, file.read_bytes()


def judge(
    try_one: Callable[[bytes], None], data: bytes, longest_cpu_s: float = LONGEST_CPU_S
) -> None:
    """Try one input within the bound of processor time. Raises what the target raises."""
    with _bounded(longest_cpu_s):
        try_one(data)


@contextmanager
def _bounded(longest_cpu_s: float) -> Iterator[None]:
    def stop(number: int, frame: FrameType | None) -> None:
        raise TooMuchWork(f"more than {longest_cpu_s} s of processor time")

    before = signal.signal(signal.SIGPROF, stop)
    begun = time.process_time()
    signal.setitimer(signal.ITIMER_PROF, longest_cpu_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        signal.signal(signal.SIGPROF, before)
    if (took_s := time.process_time() - begun) > longest_cpu_s:
        raise TooMuchWork(f"{took_s:.1f} s of processor time")


def fuzz(
    name: str,
    *,
    seconds: float,
    seed: int,
    most_runs: int = -1,
    package: str = PACKAGE,
    corpus: Path = CORPUS,
) -> Outcome:
    """Run one target until the time is over or an input fails.

    A failing input is kept in the corpus. With `most_runs` and without a failure in between, the
    same seed tries the same inputs.
    """
    outcome = Outcome(name)
    begun = time.monotonic()
    with TemporaryDirectory() as folder:
        argv = _command(name, Path(folder), package, corpus)
        argv += [f"-seed={seed}", f"-runs={most_runs}", f"-max_total_time={max(int(seconds), 1)}"]
        # Set for the child, so that a checkout tests itself and one seed means one run.
        environment = {
            **os.environ,
            "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
            "PYTHONHASHSEED": "0",
            "RUST_BACKTRACE": "0",
        }
        with subprocess.Popen(
            argv, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True, errors="replace"
        ) as child:
            assert child.stderr is not None
            for line in child.stderr:
                _note(line, outcome)
        _keep_artefacts(Path(folder), corpus / name)
        outcome.failures += [each.name for each in _failed(Path(folder))]
        if child.returncode and not outcome.failures:
            outcome.failures.append(f"exit status {child.returncode}")
    outcome.seconds = round(time.monotonic() - begun, 1)
    return outcome


def _command(name: str, folder: Path, package: str, corpus: Path) -> list[str]:
    """The child's arguments. The first corpus folder is where libFuzzer writes what it finds."""
    grown, seeds, failed = folder / "grown", folder / "seeds", folder / "failed"
    for each in (grown, seeds, failed):
        each.mkdir()
    for label, data in inputs(name, package, corpus):
        (seeds / label).write_bytes(data)
    dictionary = folder / "tokens"
    tokens: Iterable[bytes] = getattr(load(name, package), "TOKENS", ())
    escaped = ("".join(f"\\x{byte:02x}" for byte in each) for each in tokens)
    dictionary.write_text("".join(f'"{each}"\n' for each in escaped))
    return [
        *(sys.executable, "-m", "tests.fuzz.engine", f"{package}.{name}", str(failed)),
        *(str(grown), str(seeds)),
        *([f"-dict={dictionary}"] if tokens else []),
        f"-artifact_prefix={failed}/artefact-",
        *(f"-max_len={LONGEST_INPUT_BYTES}", "-len_control=20"),
        *(f"-timeout={_LONGEST_CALL_S}", f"-rss_limit_mb={_MOST_MEMORY_MB}"),
    ]


def _note(line: str, outcome: Outcome) -> None:
    """Take the figures of a line of libFuzzer; pass on what is not about progress."""
    if progress := _PROGRESS.match(line):
        outcome.runs = int(progress[1])
    if reached := _REACHED.search(line):
        outcome.arcs, outcome.corpus = int(reached[1]), int(reached[2])
    if not _NOISE.match(line):
        sys.stderr.write(line)


def _keep_artefacts(folder: Path, corpus: Path) -> None:
    """Name what libFuzzer wrote itself (no memory left, stuck in C) as our own failures are."""
    failed = folder / "failed"
    for file in sorted(failed.glob("artefact-*")):
        file.rename(failed / found_name(file.read_bytes()))
    for file in _failed(folder):
        corpus.mkdir(parents=True, exist_ok=True)
        (corpus / file.name).write_bytes(file.read_bytes())


def _failed(folder: Path) -> list[Path]:
    return sorted((folder / "failed").glob(f"{_FOUND}*"))


def found_name(data: bytes) -> str:
    """What the file of a failing input is called."""
    return _FOUND + hashlib.sha256(data).hexdigest()[:12]


def _child(module: str, failed: Path, arguments: list[str]) -> None:
    """Hand the process to libFuzzer. Does not return."""
    import atheris

    with atheris.instrument_imports(include=["lattice", module]):
        target = importlib.import_module(module)
    longest_cpu_s = getattr(target, "LONGEST_CPU_S", LONGEST_CPU_S)
    runs = 0

    def one(data: bytes) -> None:
        nonlocal runs
        runs += 1
        try:
            judge(target.try_one, data, longest_cpu_s)
        except BaseException:  # noqa: BLE001 - whatever it is, it is what was looked for
            (failed / found_name(data)).write_bytes(data)
            print(f"#{runs} FAILED", file=sys.stderr)
            print(f"{found_name(data)}: {data[:400]!r}", file=sys.stderr)
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)

    atheris.Setup([module, *arguments], one)
    atheris.Fuzz()


if __name__ == "__main__":
    _child(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
