"""A real process that holds whoever reads it, beside a real helper and the agent's own readers.

While the attack lasts, whatever reads that process in `/proc` on this machine hangs: `ps`, `pkill`
and `top` too. Nothing here looks for it there, and it is ended by its process group.
"""

from __future__ import annotations

import asyncio
import json
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from lab import users
from lattice.adapters.helper.channel import HelperChannel
from lattice.adapters.helper.counters import HelperCounterLine
from lattice.adapters.helper.outputs import HelperOutputs
from lattice.adapters.linux.nodejobs import NodeJobs, Roots
from lattice.base.clock import SystemClock
from lattice.base.errors import LatticeError
from lattice.domain.counters import IO
from lattice.domain.nodejobs import UNREADABLE
from tests.contract.identities import being
from tests.eventually import eventually
from tests.integration.probing_bench import ProbingBench

pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]

ALICES, BOBS = 4301, 4302
ATTACK = Path(__file__).parents[1] / "attacks" / "frozen_exec.py"
_FREEZER = Path("/sys/fs/cgroup/freezer")
_JOIN = 'echo $$ >"$1" || exit 125; shift; exec "$@"'


class Attack:
    """Alice's, in her job; `pid` is the process that can't be read."""

    def __init__(self, bench: ProbingBench) -> None:
        uid = pwd.getpwnam("alice").pw_uid
        group = _FREEZER / f"slurm_{bench.node}" / f"uid_{uid}" / f"job_{ALICES}" / "step_0"
        group.mkdir(parents=True, exist_ok=True)
        script = bench.folder / ATTACK.name
        script.write_text(ATTACK.read_text())
        script.chmod(0o644)
        self._process = subprocess.Popen(
            [
                *("/bin/sh", "-c", _JOIN, "join", str(group / "cgroup.procs")),
                *("setpriv", "--reuid=alice", "--regid=alice", "--init-groups", "--"),
                *("/usr/bin/python3", str(script), "200"),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.pid = self._process.pid
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == f"held {self.pid}\n"

    def end(self) -> None:
        if self._process.returncode is None:
            os.killpg(self.pid, signal.SIGKILL)
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()


@pytest.fixture(scope="module")
def bench() -> Iterator[ProbingBench]:
    if os.geteuid() != 0:
        pytest.skip("the helper is started as root")
    if not _FREEZER.is_dir():
        pytest.skip("the groups of this test are those of cgroup v1")
    folder = Path(tempfile.mkdtemp(prefix="lattice-unreadable-", dir="/var/lib"))
    made = ProbingBench(folder)
    try:
        yield made
    finally:
        made.close()
        shutil.rmtree(folder)


@pytest.fixture
def bobs(bench: ProbingBench) -> int:
    return bench.start(["sleep", "300"], user="bob", owner="bob", job=BOBS)


@pytest.fixture
def attack(bench: ProbingBench, bobs: int) -> Iterator[Attack]:
    made = Attack(bench)
    try:
        yield made
    finally:
        made.end()
        bench.end_all()


@pytest.mark.spec("LOG-3")
@pytest.mark.threat("unreadable-process")
async def test_the_agent_sees_the_other_job_and_after_the_thaw_nothing_hangs(
    attack: Attack, bobs: int
) -> None:
    node = NodeJobs(Roots(), SystemClock())
    await node.refresh()
    other, own = node.job(BOBS), node.job(ALICES)
    assert other is not None
    assert own is not None
    assert bobs in {each.pid for each in other.processes}
    # Not every kernel holds a reader of `stat`: then there is nothing to leave out.
    assert own.unread in {(), (attack.pid,)}
    attack.end()
    await node.refresh()
    assert all(not job.unread for job in node.jobs.values())


@pytest.mark.spec("TOP-2", "SRC-2")
@pytest.mark.threat("unreadable-process")
def test_the_helper_counts_the_other_job_again_and_again(
    bench: ProbingBench, attack: Attack, bobs: int
) -> None:
    with closing(HelperCounterLine(bench.socket, SystemClock(), timeout_s=60)) as line:
        with being(users.AGENT_USER):
            for _ in range(4):
                telling = line.ask((IO,), (ALICES, BOBS))
                assert bobs in {row[0] for row in telling.of(IO)[BOBS]}
                assert telling.unread == {ALICES: UNREADABLE}
        attack.end()
        with being(users.AGENT_USER):
            eventually(lambda: line.ask((IO,), (ALICES, BOBS)).unread, lambda unread: not unread)


@pytest.mark.spec("LOG-3")
@pytest.mark.threat("unreadable-process")
async def test_questions_about_it_take_no_place_of_others(
    bench: ProbingBench, attack: Attack, bobs: int
) -> None:
    outputs = HelperOutputs(HelperChannel(bench.socket, timeout_s=60))
    with being(users.AGENT_USER):
        hanging = [
            asyncio.create_task(outputs.note_output(ALICES, [attack.pid])) for _ in range(12)
        ]
        await asyncio.sleep(0.5)
        assert await _answered(outputs, bobs) >= 0
        await asyncio.gather(*hanging, return_exceptions=True)


async def _answered(outputs: HelperOutputs, pid: int) -> int:
    """As the agent does: busy for a moment means to ask again."""
    for _ in range(10):
        try:
            return await outputs.note_output(BOBS, [pid])
        except LatticeError:
            await asyncio.sleep(0.5)
    raise AssertionError("nobody was answered")


def test_the_helper_ends_while_it_hangs(bench: ProbingBench, attack: Attack) -> None:
    """The last one here: the helper is the module's."""
    with (
        closing(HelperCounterLine(bench.socket, SystemClock(), timeout_s=60)) as line,
        being(users.AGENT_USER),
    ):
        assert line.ask((IO,), (ALICES,)).unread == {ALICES: UNREADABLE}
    bench.helper.terminate()
    assert eventually(bench.helper.poll, lambda code: code is not None) == 0
    lines = [json.loads(each) for each in bench.log.read_text().splitlines()]
    assert lines[-1]["event"] == "stopped"
