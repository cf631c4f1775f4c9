"""What the root helper tells of a job: real processes, real namespaces, a real dead share."""

from __future__ import annotations

import asyncio
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from lab import users
from lattice.base.errors import DataUnavailable, PermissionRefused
from lattice.domain.jobfacts import StackFrame, StackLanguage
from lattice.domain.privileged import DumpStacks, ReadTasks, write_request
from lattice.helper.probe_base import MOST_OF_USER
from tests.contract.identities import being
from tests.eventually import eventually
from tests.integration.probing_bench import JOB, ProbingBench

pytestmark = pytest.mark.lab

DEAD_SHARE = Path(__file__).with_name("dead_share.py")
PYTHON = "/usr/bin/python3"
_STUCK = """
import time
def load():
    time.sleep(300)
def train():
    load()
train()
"""


@pytest.fixture(scope="module")
def bench() -> Iterator[ProbingBench]:
    if os.geteuid() != 0:
        pytest.skip("the helper is started as root")
    folder = Path(tempfile.mkdtemp(prefix="lattice-probing-", dir="/var/lib"))
    made = ProbingBench(folder)
    try:
        yield made
    finally:
        made.close()
        shutil.rmtree(folder)


@pytest.fixture(autouse=True)
def _nothing_is_left(bench: ProbingBench) -> Iterator[None]:
    yield
    bench.end_all()


def _script(bench: ProbingBench, name: str, text: str) -> str:
    path = bench.folder / name
    path.write_text(text)
    path.chmod(0o644)
    return str(path)


def _wait_until_asleep(pid: int) -> None:
    """It has reached the line where it sleeps."""
    eventually(Path(f"/proc/{pid}/wchan").read_text, lambda place: "nanosleep" in place)


def _name_the_line_in_which_a_python_stands(bench: ProbingBench) -> float:
    script = _script(bench, "train.py", _STUCK)
    pid = bench.start([PYTHON, script], environment={"SLURM_PROCID": "3"})
    bench.start(["sleep", "300"], environment={"SLURM_PROCID": "4"})
    _wait_until_asleep(pid)
    before = Path(f"/proc/{pid}/status").read_text()
    begun = time.monotonic()
    python, sleep = bench.stacks()
    took_s = time.monotonic() - begun
    assert (python.rank, python.pid, python.language) == (3, pid, StackLanguage.PYTHON)
    assert python.trouble == ""
    assert python.frames[:2] == (StackFrame("load", script, 4), StackFrame("train", script, 6))
    assert (sleep.rank, sleep.language) == (4, StackLanguage.KERNEL)
    assert "nanosleep" in sleep.waits_in
    assert any("nanosleep" in each.function for each in sleep.frames)
    assert bench.runs(pid)
    assert "State:\tS" in Path(f"/proc/{pid}/status").read_text()
    assert "TracerPid:\t0" in before
    return took_s


@pytest.mark.spec("DIAG-6")
@pytest.mark.threat("looking-child")
def test_the_line_in_which_a_python_stands_is_named_and_it_goes_on(bench: ProbingBench) -> None:
    _name_the_line_in_which_a_python_stands(bench)


@pytest.mark.timing
@pytest.mark.spec("DIAG-6")
def test_the_line_in_which_a_python_stands_is_named_within_six_seconds(
    bench: ProbingBench,
) -> None:
    assert _name_the_line_in_which_a_python_stands(bench) < 6.0


_TELL_RIGHTS = """
#include <stdio.h>
#include <string.h>
int main(void) {
    char line[256];
    FILE *status = fopen("/proc/self/status", "r");
    while (fgets(line, sizeof line, status)) {
        for (char *at = line; *at; at++)
            if (*at == '\\t' || *at == '\\n') *at = ' ';
        if (!strncmp(line, "Cap", 3) || !strncmp(line, "Uid", 3) || !strncmp(line, "NoNew", 5))
            fprintf(stderr, "%s;", line);
    }
    return 1;
}
"""


@pytest.mark.spec("AUTH-9", "DIAG-6")
@pytest.mark.threat("looking-child")
def test_py_spy_is_run_as_the_owner_without_a_capability(bench: ProbingBench) -> None:
    source, tool = bench.folder / "tool.c", bench.folder / "tool"
    source.write_text(_TELL_RIGHTS)
    if subprocess.run(["cc", "-o", tool, source], check=False).returncode:
        pytest.skip("no compiler here")
    (bench.folder / "beside").mkdir()
    beside = ProbingBench(bench.folder / "beside", "--py-spy", str(tool))
    try:
        _wait_until_asleep(beside.start([PYTHON, _script(bench, "held.py", _STUCK)]))
        (look,) = beside.stacks()
    finally:
        beside.close()
    words = look.trouble.removeprefix("py-spy: ").split(";")
    told = {name: set(rest.split()) for name, _, rest in (each.partition(":") for each in words)}
    assert told["Uid"] == {str(pwd.getpwnam("alice").pw_uid)}
    assert told["NoNewPrivs"] == {"1"}
    rights = [told[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")]
    assert rights == [{"0" * 16}] * 5


@pytest.mark.spec("DIAG-6")
@pytest.mark.threat("looking-child")
def test_nobody_is_told_of_anothers_job(bench: ProbingBench) -> None:
    bench.start(["sleep", "300"])
    with pytest.raises(DataUnavailable, match="nothing of its owner's"):
        bench.stacks(user="bob")
    with pytest.raises(DataUnavailable, match="nothing of its owner's"):
        bench.tasks(user="alice", job=JOB + 1)
    with pytest.raises(PermissionRefused):
        bench.tasks(user="root")


@pytest.mark.spec("DIAG-6")
@pytest.mark.threat("looking-child")
def test_a_process_of_another_in_the_job_is_none_of_it(bench: ProbingBench) -> None:
    mine = bench.start(["sleep", "300"])
    bench.start(["sleep", "300"], user="bob")
    bench.start(["sleep", "300"], user="root")
    assert [each.pid for each in bench.tasks()] == [mine]
    assert [each.pid for each in bench.stacks()] == [mine]


def test_a_job_that_was_started_again_is_not_the_one(bench: ProbingBench) -> None:
    bench.start(["sleep", "300"])
    request = bench.request(ReadTasks(), started=int(time.time()) + 600)
    with being(users.AGENT_USER), pytest.raises(DataUnavailable, match="started again"):
        asyncio.run(bench.port.tasks(request))


@pytest.mark.spec("AUTH-9")
@pytest.mark.threat("looking-child")
def test_a_grant_for_one_is_none_for_the_other(bench: ProbingBench) -> None:
    bench.start(["sleep", "300"])
    request = bench.request(ReadTasks())
    grant = request.decode().split('"grant":"')[1].split('"')[0]
    forged = write_request(grant, DumpStacks(1000))
    with being(users.AGENT_USER), pytest.raises(PermissionRefused):
        asyncio.run(bench.port.stacks(forged))


@pytest.mark.spec("DIAG-1")
def test_tasks_say_whether_their_output_waits_in_a_buffer(bench: ProbingBench) -> None:
    script = _script(bench, "quiet.py", "import time\ntime.sleep(300)\n")
    for rank, (words, extra) in enumerate(
        (([PYTHON, script, "--token=secret"], {}), ([PYTHON, "-u", script], {}),
         ([PYTHON, script], {"PYTHONUNBUFFERED": "1"}))
    ):  # fmt: skip
        own = {"SLURM_PROCID": str(rank), **extra}
        _wait_until_asleep(bench.start(words, environment=own, stdout=subprocess.PIPE))
    looks = bench.tasks()
    assert [(each.rank, each.python_unbuffered, each.output_piped) for each in looks] == [
        (0, False, True),
        (1, True, True),
        (2, True, True),
    ]
    assert [each.command for each in looks] == ["python3 quiet.py"] * 3
    assert all(each.state == "S" and each.step == "0" for each in looks)
    assert all(each.age_s is not None and each.age_s >= 0 for each in looks)
    assert all(each.cpu_seconds is not None and each.cpu_seconds >= 0 for each in looks)


def _look_at_the_mounts_the_job_sees(bench: ProbingBench) -> float:
    private = bench.folder / "private"
    private.mkdir(exist_ok=True)
    bench.start(
        ["sleep", "300"],
        before=["unshare", "-m", "sh", "-c",
                f'mount -t tmpfs scratch "{private}" && exec "$@"', "sh"],
    )  # fmt: skip
    looks = {each.path: each for each in bench.mounts().mounts}
    mine = looks[str(private)]
    assert (mine.kind, mine.source) == ("tmpfs", "scratch")
    assert mine.answered_s is not None
    assert not mine.trouble
    assert "/proc" not in looks
    assert "/" in looks
    assert str(private) not in Path("/proc/self/mounts").read_text()
    return mine.answered_s


@pytest.mark.spec("DIAG-3")
def test_mounts_are_those_the_job_sees(bench: ProbingBench) -> None:
    assert _look_at_the_mounts_the_job_sees(bench) >= 0


@pytest.mark.timing
@pytest.mark.spec("DIAG-3")
def test_a_mount_in_memory_answers_within_a_second(bench: ProbingBench) -> None:
    assert _look_at_the_mounts_the_job_sees(bench) < 1.0


def _look_at_a_dead_share(bench: ProbingBench) -> tuple[float, float]:
    """The seconds that the look took, and those for which it says that it waited."""
    share = bench.folder / "share"
    share.mkdir(exist_ok=True)
    _dead_share(bench, share)
    begun = time.monotonic()
    looks = {each.path: each for each in bench.mounts(timeout_ms=500).mounts}
    took_s = time.monotonic() - begun
    dead = looks.pop(str(share))
    assert (dead.kind, dead.answered_s) == ("fuse.dead", None)
    assert dead.waited_s is not None
    # Other stories on this machine may have shares that are dead, too.
    assert any(each.answered_s is not None for each in looks.values())
    hanging = eventually(_hanging, lambda found: len(found) == 1)

    # Asked again, no second look is sent after the first, which tells since when it waits.
    for _ in range(3):
        again = {each.path: each for each in bench.mounts(timeout_ms=200).mounts}[str(share)]
        assert again.answered_s is None
        assert again.waited_s is not None
        assert [dead.waited_s, again.waited_s] == sorted([dead.waited_s, again.waited_s])
    assert eventually(_hanging, lambda found: len(found) == 1) == hanging

    # The helper serves others meanwhile, and when the share is gone nothing stays.
    assert bench.tasks()
    bench.end_all()
    eventually(_hanging, lambda left: not left)
    return took_s, dead.waited_s


@pytest.mark.spec("DIAG-3")
def test_a_dead_share_is_told_and_holds_nobody_up(bench: ProbingBench) -> None:
    _look_at_a_dead_share(bench)


@pytest.mark.timing
@pytest.mark.spec("DIAG-3")
def test_a_dead_share_is_given_up_after_half_a_second_and_told_within_three(
    bench: ProbingBench,
) -> None:
    took_s, waited_s = _look_at_a_dead_share(bench)
    assert took_s < 3.0
    assert waited_s == pytest.approx(0.5, abs=0.4)


@pytest.mark.spec("DIAG-3")
def test_one_user_can_not_have_every_look_hang(bench: ProbingBench) -> None:
    for number in range(10):
        share = bench.folder / f"share{number}"
        share.mkdir(exist_ok=True)
        _dead_share(bench, share, job=JOB + number)
    for number in range(10):
        bench.mounts(timeout_ms=100, job=JOB + number)
    eventually(_hanging, lambda found: 1 <= len(found) <= MOST_OF_USER)
    refused = bench.mounts(timeout_ms=100, job=JOB + 9)
    assert refused.unlooked
    bob = bench.start(["sleep", "300"], user="bob", owner="bob", job=JOB + 20)
    assert not bench.mounts(user="bob", job=JOB + 20).unlooked
    assert bench.runs(bob)


def _dead_share(bench: ProbingBench, folder: Path, job: int = JOB) -> None:
    if not Path("/dev/fuse").exists():
        pytest.skip("no FUSE here")
    bench.start(
        ["sleep", "300"], job=job, before=[sys.executable, "-I", str(DEAD_SHARE), str(folder)]
    )


def _hanging() -> set[int]:
    """Looks of the helper's that wait for an answer: alice's, and in the kernel (state D)."""
    found = set()
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):
                status = (folder / "status").read_text()
                uid = f"Uid:\t{pwd.getpwnam('alice').pw_uid}\t"
                waits = "State:\tD" in status
                if waits and uid in status and "python" in status.splitlines()[0].lower():
                    found.add(int(folder.name))
    return found
