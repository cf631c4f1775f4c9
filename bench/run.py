"""What lattice-run costs a training: at its start, and in its steps.

    python -m bench.run [--rounds 15]

One JSON line a figure. A start is a whole process: its processor time and its elapsed time. The
goal is on the difference, 20 ms.

- `start with OpenTelemetry` is a program that has imported PyTorch, as far as it matters here:
  PyTorch reads the entry points of all distributions at its import.
- `in a bare program`: nothing else is imported. Then most of the difference is the SDK's, which
  imports `importlib.metadata` and searches the environment when any detector is named. `with the
  SDK's own detector` shows that.
- `asked by OpenTelemetry` and `asked by MLflow` are lattice-run's part alone, without that search;
  MLflow makes it anyway.

The environment has 200 further distributions, as those of trainings have, on both sides. It is made
in a temporary folder from the machine's package index. Rounds are interleaved.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.figures import load, measured, paired

ROUNDS = 15
MOST_MS = 20.0
MOST_RATIO = 1.02
_ROOT = Path(__file__).resolve().parents[1]
_FURTHER = 200
_BARE = "from opentelemetry.sdk.trace import TracerProvider; TracerProvider()"
_LIKE_TORCH = f"import importlib.metadata as m; m.entry_points(group='torch.backends'); {_BARE}"
_ASKED_BY_SDK = """
import opentelemetry.sdk.resources, sys, time
sys.path.append(sys.argv[1])
start = time.process_time_ns()
from lattice_run.otel import JobDetector
assert JobDetector().detect().attributes
print((time.process_time_ns() - start) / 1e6)
"""
_ASKED_BY_MLFLOW = """
import mlflow.tracking.context.registry, sys, time
sys.path.append(sys.argv[1])
start = time.process_time_ns()
from lattice_run.mlflow import JobContext
provider = JobContext()
assert provider.in_context() and provider.tags()
print((time.process_time_ns() - start) / 1e6)
"""
_STEPS = """
import importlib.metadata, time
importlib.metadata.entry_points(group="torch.backends")
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
class Nowhere(SpanExporter):
    def export(self, spans): return SpanExportResult.SUCCESS
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(Nowhere()))
tracer = provider.get_tracer("train")
def steps(count):
    for number in range(count):
        with tracer.start_as_current_span("step") as span:
            span.set_attribute("loss", number)
steps(2000)
start = time.process_time_ns()
steps(10000)
print((time.process_time_ns() - start) / 10000 / 1000)
"""


class Training:
    """An environment as trainings have it, with lattice-run in a folder beside."""

    def __init__(self, folder: Path) -> None:
        self.python = folder / "venv" / "bin" / "python"
        self.with_run, self._further = folder / "with", folder / "further"
        uv = Path(sys.executable).parent / "uv"
        _run(sys.executable, "-m", "venv", "--without-pip", folder / "venv")
        pip = (uv, "pip", "install", "-q", "--compile-bytecode")
        _run(*pip, "--python", self.python, "opentelemetry-sdk", "mlflow-skinny")
        run = (*pip, "--python", self.python, "--target", self.with_run, "--no-deps")
        _run(*run, _ROOT / "packages" / "lattice-run")
        for number in range(_FURTHER):
            _make_distribution(self._further, number)

    def environment(self, *, ours: bool, detectors: str = "") -> dict[str, str]:
        """In a job; the paths differ by lattice-run alone."""
        recorded = json.loads((_ROOT / "tests/fixtures/run/slurm-26.05.json").read_text())
        job: dict[str, str] = recorded["nodes-step"][0]["environment"]
        path = [str(self._further), *([str(self.with_run)] if ours else [])]
        named = {"OTEL_EXPERIMENTAL_RESOURCE_DETECTORS": detectors} if detectors else {}
        place = {"PATH": os.environ["PATH"], "HOME": str(self._further), "LANG": "C.UTF-8"}
        return job | place | named | {"PYTHONPATH": ":".join(path)}


class Round:
    """What one way of starting took, round by round."""

    def __init__(self) -> None:
        self.processor_ms: list[float] = []
        self.elapsed_ms: list[float] = []

    def add(self, python: Path, program: str, environment: Mapping[str, str]) -> None:
        start = time.perf_counter()
        with subprocess.Popen([python, "-c", program], env=dict(environment)) as process:
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        self.elapsed_ms.append((time.perf_counter() - start) * 1000)
        self.processor_ms.append((used.ru_utime + used.ru_stime) * 1000)
        if process.returncode:
            raise SystemExit(f"exit code {process.returncode}: {program}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.run", description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="at least 7")
    rounds = max(parser.parse_args().rounds, 7)
    with tempfile.TemporaryDirectory(prefix="bench-run-") as folder:
        training = Training(Path(folder))
        fine = _measure_spans(training, rounds)
        fine &= _measure_own_part(training, rounds)
        fine &= _measure_steps(training, rounds)
    return 0 if fine else 1


def _measure_spans(training: Training, rounds: int) -> bool:
    bare = training.environment(ours=False)
    ours = training.environment(ours=True, detectors="lattice")
    took = _starts(training.python, _LIKE_TORCH, {"bare": bare, "ours": ours}, rounds)
    fine = _report("start with OpenTelemetry", took["bare"], took["ours"], rounds, goal=True)
    other = training.environment(ours=False, detectors="process")
    environments = {"bare": bare, "ours": ours, "other": other}
    took = _starts(training.python, _BARE, environments, rounds)
    title = "start with OpenTelemetry, in a bare program"
    _report(title, took["bare"], took["ours"], rounds, goal=False)
    title += ", with the SDK's own detector"
    _report(title, took["bare"], took["other"], rounds, goal=False)
    return fine


def _measure_own_part(training: Training, rounds: int) -> bool:
    environment = training.environment(ours=False)
    words = [str(training.with_run)]
    fine = True
    for name, program in (("OpenTelemetry", _ASKED_BY_SDK), ("MLflow", _ASKED_BY_MLFLOW)):
        values = [_said(training.python, program, environment, *words) for _ in range(rounds)]
        title = f"asked by {name}: added processor time"
        figure = measured(title, "ms", values, at_most=MOST_MS)
        figure.print(rounds=rounds, distributions=_FURTHER, load=load())
        fine &= figure.ok is not False
    return fine


def _measure_steps(training: Training, rounds: int) -> bool:
    bare, ours = [], []
    without = training.environment(ours=False)
    with_run = training.environment(ours=True, detectors="lattice")
    for number in range(rounds + 1):
        # Each is first in every second round.
        order = (without, with_run) if number % 2 else (with_run, without)
        took = [_said(training.python, _STEPS, each) for each in order]
        if number:
            bare.append(took[order.index(without)])
            ours.append(took[order.index(with_run)])
    figure = paired("a step with a span", "us", ours, bare, at_most=MOST_RATIO)
    figure.print(rounds=rounds, load=load())
    return figure.ok is not False


def _starts(
    python: Path, program: str, environments: Mapping[str, Mapping[str, str]], rounds: int
) -> dict[str, Round]:
    took = {name: Round() for name in environments}
    for name in environments:  # the first start fills the file cache
        Round().add(python, program, environments[name])
    for _ in range(rounds):
        for name, environment in environments.items():
            took[name].add(python, program, environment)
    return took


def _report(title: str, bare: Round, ours: Round, rounds: int, *, goal: bool) -> bool:
    at_most = MOST_MS if goal else None
    processor = _differences(ours.processor_ms, bare.processor_ms)
    elapsed = _differences(ours.elapsed_ms, bare.elapsed_ms)
    figures = (
        measured(f"{title}: added processor time", "ms", processor, at_most=at_most),
        measured(f"{title}: added elapsed time", "ms", elapsed, at_most=at_most),
        measured(f"{title}: processor time without", "ms", bare.processor_ms),
    )
    for each in figures:
        each.print(rounds=rounds, distributions=_FURTHER, load=load())
    return all(each.ok is not False for each in figures)


def _differences(ours: Sequence[float], bare: Sequence[float]) -> list[float]:
    return [one - other for one, other in zip(ours, bare, strict=True)]


def _said(python: Path, program: str, environment: Mapping[str, str], *words: str) -> float:
    argv = [str(python), "-c", program, *words]
    return float(subprocess.check_output(argv, env=dict(environment), text=True))


def _make_distribution(folder: Path, number: int) -> None:
    home = folder / f"further_{number}-1.0.dist-info"
    home.mkdir(parents=True)
    (home / "METADATA").write_text(f"Metadata-Version: 2.1\nName: further-{number}\nVersion: 1.0\n")
    if number % 4 == 0:
        text = f"[console_scripts]\nfurther-{number} = further_{number}:main\n"
        (home / "entry_points.txt").write_text(text)


def _run(*words: object) -> None:
    subprocess.run([str(each) for each in words], check=True)


if __name__ == "__main__":
    sys.exit(main())
