"""Everything the gate leaves out, in named parts: `just nightly`, `just nightly lab vm`.

Each part takes at most an hour, alone on the machine, and writes a dated result with the commit to
bench/results. `just nightly status` says whether the newest result of every part passes on this
tree. A part that was interrupted has written nothing and can be repeated alone.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO
from xml.etree import ElementTree as ET

from lab.earlier import EARLIER
from lab.other_python import RELEASES, OtherPython

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results"
LONGEST_S = 3600.0
_TIDYING_S = 120.0
_PYTEST = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider")
_LAB_TESTS = ("tests/contract", "tests/integration", "tests/e2e")
_OF_TOOLS = ("bench", "fuzz", "lab", "scripts")
_UNIT_TESTS = (
    *("tests/contract", "tests/unit"),
    *(f"--ignore=tests/unit/{name}" for name in _OF_TOOLS),
)
_WITHOUT_LAB = "not lab and not long and not timing and not vm"
_STORIES = "not long and not timing and not vm and (story or (contract and lab))"
"""As in .ci/run."""
_THREE_LABS = ("-n", "3", "--dist", "loadgroup", "--no-loadscope-reorder")
_TRAININGS = ("tests/e2e/test_torch_training.py", "tests/e2e/test_training_runs.py")
_TWO_LABS = ("-n", "2", "--dist", "loadfile", "--no-loadscope-reorder")
OLDER_AGENTS = (
    *("tests/e2e/test_attach.py", "tests/e2e/test_attach_faults.py", "tests/e2e/test_diag.py"),
    *("tests/e2e/test_enter.py", "tests/e2e/test_log_gaps.py", "tests/e2e/test_logs.py"),
    *("tests/e2e/test_nodes_admin.py", "tests/e2e/test_report.py", "tests/e2e/test_sharing.py"),
    *("tests/e2e/test_telemetry_mode.py", "tests/e2e/test_top.py", "tests/e2e/test_watch.py"),
)
"""Whose stories in the gate also hold with agents and helpers of earlier releases."""
FUZZ_S = 120
"""For each target, two at a time: a dozen of them take twelve minutes."""
SOAKS = ("cuts", "pid_reuse", "lab", "store", "metric_store", "compare", "gaps", "sensitive 300")
"""Each with its arguments."""


@dataclass(frozen=True, slots=True)
class Tally:
    """What a part's tests came to."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    failures: list[str] = field(default_factory=list)
    tests: dict[str, str] = field(default_factory=dict)
    """What became of each: passed, failed or skipped."""

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            self.passed + other.passed,
            self.failed + other.failed,
            self.skipped + other.skipped,
            [*self.failures, *other.failures],
            self.tests | other.tests,
        )


@dataclass(frozen=True, slots=True)
class Result:
    """One line under bench/results."""

    part: str
    date: str
    commit: str
    tree: str
    """Names the commit's files that a part may read."""
    passed: int
    failed: int
    skipped: int
    seconds: float
    kernel: str
    cgroup: str
    failures: list[str]
    tests: dict[str, str] = field(default_factory=dict)
    """Of the parts that docs/operate/slurm.md shows."""

    @property
    def ok(self) -> bool:
        return self.failed == 0 and self.passed > 0


Runner = Callable[[Path, float], Tally]
"""Runs a part in a work folder, until a deadline of the monotonic clock."""


def _pytest(*words: str, profile: str = "gate", **environment: str) -> Runner:
    def run(folder: Path, deadline_s: float) -> Tally:
        report = folder / "report.xml"
        argv = [*_PYTEST, f"--junitxml={report}", *words]
        ended = _call(argv, deadline_s, HYPOTHESIS_PROFILE=profile, **environment)
        if ended is None:
            return Tally(failed=1, failures=[f"not done after {LONGEST_S / 60:.0f} minutes"])
        return tally(report.read_text()) if report.exists() else Tally(failed=1)

    return run


def _python(version: str) -> Runner:
    """The tests without a lab in that Python, then the stories with all of Lattice in it."""

    def run(folder: Path, deadline_s: float) -> Tally:
        python = OtherPython(version)
        python.ensure()
        environment = {
            "LATTICE_LAB_SLURM": RELEASES[version],
            "LATTICE_LAB_PYTHON": str(python.executable),
        }
        report = folder / "unit.xml"
        in_room = [sys.executable, "-m", "scripts.in_other_python", version, str(report)]
        _call([*in_room, "-n", "3", "-m", _WITHOUT_LAB, *_UNIT_TESTS], deadline_s)
        found = tally(report.read_text()) if report.exists() else Tally(failed=1)
        stories = _pytest(*_THREE_LABS, "-m", _STORIES, *_LAB_TESTS, **environment)
        return replace(found, tests={}) + stories(folder, deadline_s)

    return run


def _older_agents(folder: Path, deadline_s: float) -> Tally:
    """Stories of the gate with agents of each earlier release, on a Slurm that they know."""
    found = Tally()
    for release in EARLIER:
        release.ensure()
        environment = {
            "LATTICE_LAB_SLURM": "22.05",
            "LATTICE_LAB_NODE_PYTHON": str(release.python),
        }
        stories = _pytest(*_TWO_LABS, "-m", _STORIES, *OLDER_AGENTS, **environment)
        ended = stories(folder, deadline_s)
        found += replace(ended, failures=[f"{release.name}: {each}" for each in ended.failures])
    return found


def _soaks(folder: Path, deadline_s: float) -> Tally:
    del folder
    failures = []
    for name in SOAKS:
        print(f"soak {name}", flush=True)
        module, *words = name.split()
        if _call([sys.executable, "-m", f"bench.soak.{module}", *words], deadline_s) != 0:
            failures.append(f"soak {name}")
    return Tally(len(SOAKS) - len(failures), len(failures), 0, failures)


def _fuzz(folder: Path, deadline_s: float) -> Tally:
    report = folder / "fuzz.jsonl"
    argv = [sys.executable, "-m", "tests.fuzz", "--all", "--seconds", str(FUZZ_S)]
    with report.open("w") as output:
        ended = _call(argv, deadline_s, output=output)
    found = fuzz_tally(report.read_text())
    if ended is None:
        found.failures.append(f"not done after {LONGEST_S / 60:.0f} minutes")
    elif ended != 0 and not found.failures:
        found.failures.append(f"exit status {ended}")
    return replace(found, failed=len(found.failures))


def _call(
    argv: list[str], deadline_s: float, *, output: IO[str] | None = None, **environment: str
) -> int | None:
    """The exit status; None for a program that was still running at the deadline."""
    process = subprocess.Popen(argv, cwd=ROOT, env={**os.environ, **environment}, stdout=output)
    try:
        return process.wait(max(deadline_s - time.monotonic(), 0.0))
    except subprocess.TimeoutExpired:
        # pytest takes its labs down when it is interrupted.
        process.send_signal(signal.SIGINT)
        try:
            process.wait(_TIDYING_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        return None


def tally(report: str) -> Tally:
    """Count the cases of a JUnit report; an error before or after a test counts as a failure."""
    tests: dict[str, str] = {}
    for case in ET.fromstring(report).iter("testcase"):
        name = f"{case.get('classname')}::{case.get('name')}"
        if case.find("failure") is not None or case.find("error") is not None:
            tests[name] = "failed"
        elif case.find("skipped") is not None:
            tests.setdefault(name, "skipped")
        else:
            tests.setdefault(name, "passed")
    failures = [name for name, became in tests.items() if became == "failed"]
    counted = Counter(tests.values())
    return Tally(counted["passed"], len(failures), counted["skipped"], failures, tests)


def fuzz_tally(report: str) -> Tally:
    """Count the targets of `python -m tests.fuzz --all`, which writes a JSON line for each."""
    passed, failures = 0, []
    for line in report.splitlines():
        outcome = json.loads(line)
        print(line, flush=True)
        if outcome["failures"]:
            failures.append(f"fuzz {outcome['target']}: {', '.join(outcome['failures'])}")
        else:
            passed += 1
    return Tally(passed, len(failures), 0, failures)


SLURM_PARTS = {
    "slurm-22.05": {"LATTICE_LAB_SLURM": "22.05"},
    "slurm-24.11": {"LATTICE_LAB_SLURM": "24.11"},
    "slurm-26.05": {"LATTICE_LAB_SLURM": "26.05"},
    "slurm-26.05-auth": {"LATTICE_LAB_SLURM": "26.05", "LATTICE_LAB_AUTH": "slurm"},
}
"""The gate's stories on each release."""
SHOWN = (*SLURM_PARTS, "vm", "vm-22.05", *(f"python-{version}" for version in RELEASES))
"""The parts that docs/operate/slurm.md shows, test by test."""

PARTS: dict[str, Runner] = {
    "lab": _pytest(*_TWO_LABS, "-m", "not long and not timing and not vm", *_LAB_TESTS),
    "long": _pytest(*_TWO_LABS, "-m", "long and not timing and not vm", "tests"),
    # Nodes of this release see the machine's own PyTorch.
    "training": _pytest("-m", "long", *_TRAININGS, LATTICE_LAB_SLURM="22.05"),
    "vm": _pytest("-m", "vm and not timing", "tests"),
    "vm-22.05": _pytest("-m", "vm and not timing", "tests", LATTICE_LAB_SLURM="22.05"),
    **{
        part: _pytest(*_THREE_LABS, "-m", _STORIES, *_LAB_TESTS, **environment)
        for part, environment in SLURM_PARTS.items()
    },
    **{f"python-{version}": _python(version) for version in RELEASES},
    "older-agents": _older_agents,
    "machine": _pytest("-s", "tests/machine"),
    "timing": _pytest("-m", "timing and not vm", "tests"),
    "properties": _pytest(
        *("-n", "2", "-m", "hypothesis and not lab", "tests/unit", "tests/contract"),
        profile="thorough",
    ),
    "soak": _soaks,
    "fuzz": _fuzz,
}


def run(part: str) -> Result:
    """Run one part and write its result."""
    begun, tested = time.monotonic(), tree()
    commit = _git("rev-parse", "--short=12", "HEAD").strip()
    with TemporaryDirectory() as folder:
        found = PARTS[part](Path(folder), begun + LONGEST_S)
    in_a_vm = part.startswith("vm") or part == "machine"
    if part not in SHOWN:
        found = replace(found, tests={})
    result = Result(
        part=part,
        date=datetime.now(UTC).date().isoformat(),
        commit=commit,
        tree=tested,
        **asdict(found),
        seconds=round(time.monotonic() - begun, 1),
        kernel=_guest_kernel() if in_a_vm else platform.release(),
        cgroup="v2" if in_a_vm else cgroup_version(Path("/proc/mounts").read_text()),
    )
    RESULTS.mkdir(exist_ok=True)
    file = RESULTS / f"{result.date}-nightly-{part}.json"
    file.write_text(json.dumps(asdict(result), indent=1) + "\n")
    return result


_UNTESTED = ("bench/results/", "docs/", "changes/")
_TESTED = "docs/guide/sdk.md"
"""Its programs are run by tests/e2e/test_sdk.py. No part reads other pages: a word in them
outdates no result."""


def tree() -> str:
    """Names what was tested: the committed files that a part may read."""
    listed = _git("ls-tree", "-r", "HEAD").splitlines()
    name = hashlib.sha256("\n".join(filter(_is_tested, listed)).encode()).hexdigest()[:12]
    status = ("status", "--porcelain", "--untracked-files=no", "--")
    changed = _git(*status, ".", *(f":!{each}" for each in (*_UNTESTED, "*.md")))
    changed += _git(*status, _TESTED)
    return f"{name} with uncommitted changes" if changed.strip() else name


def _is_tested(line: str) -> bool:
    """Of a line of `git ls-tree -r`."""
    file = line.partition("\t")[2]
    return file == _TESTED or not (file.startswith(_UNTESTED) or file.endswith(".md"))


def cgroup_version(mounts: str) -> str:
    """Of /proc/mounts: v1, v2, or v1 with an empty v2 beside it."""
    kinds = {line.split()[2] for line in mounts.splitlines() if len(line.split()) > 2}
    if "cgroup" in kinds:
        return "v1 and v2 (hybrid)" if "cgroup2" in kinds else "v1"
    return "v2" if "cgroup2" in kinds else "none"


def _guest_kernel() -> str:
    return max((each.name for each in Path("/lib/modules").glob("*-cloud-*")), default="none")


def _git(*words: str) -> str:
    return subprocess.run(
        ["git", *words], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout


def newest(part: str) -> Result | None:
    """The last result of a part, by date."""
    files = sorted(RESULTS.glob(f"*-nightly-{part}.json"))
    return Result(**json.loads(files[-1].read_text())) if files else None


def status() -> bool:
    """Print a line for each part. True if all of them pass on this tree."""
    here, green = tree(), True
    for part in PARTS:
        found = newest(part)
        if found is None:
            words = "never run"
        elif found.tree == here:
            words = "passes" if found.ok else "fails"
        else:
            ended = "passed" if found.ok else "failed"
            words = f"{ended} on another tree ({found.date}, {found.commit})"
        green = green and words == "passes"
        print(f"{part:12} {words}")
    print("Nightly is green." if green else "Nightly is not green.")
    return green


def main() -> int:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}, or status")
    parts = asked.parse_args().parts or list(PARTS)
    if parts == ["status"]:
        return 0 if status() else 1
    if unknown := sorted(set(parts) - set(PARTS)):
        asked.error(f"no such part: {', '.join(unknown)}; there are {', '.join(PARTS)}")
    # What only the long stories need, PyTorch above all.
    long = ["long"] if {"long", "training"} & set(parts) else []
    subprocess.run([str(ROOT / "scripts" / "setup"), *long], check=True)
    # A background job of a shell ignores SIGINT, and pytest would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    results = [run(part) for part in parts]
    if set(parts) & set(SHOWN):
        subprocess.run([sys.executable, "-m", "scripts.slurm_page"], cwd=ROOT, check=True)
    for each in results:
        print(
            f"{each.part}: {each.passed} passed, {each.failed} failed, {each.skipped} skipped "
            f"in {each.seconds:.0f} s"
        )
    return 0 if all(each.ok for each in results) else 1


if __name__ == "__main__":
    sys.exit(main())
