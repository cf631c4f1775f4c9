"""The files real Slurm jobs write, found by their processes and opened as their owner.

What the helper refuses of a hostile process without any Slurm is in
`tests/integration/test_output_descriptors.py`.
"""

from __future__ import annotations

import asyncio
import os
import select
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from lab.laboratory import Lab
from lab.users import AGENT_USER
from lattice.access.grants import GrantSigner
from lattice.adapters.helper.channel import HelperChannel
from lattice.adapters.helper.outputs import HelperOutputs
from lattice.base.clock import SystemClock
from lattice.base.errors import DataUnavailable, PermissionRefused
from lattice.base.signatures import SigningKey
from lattice.domain.outputs import OpenedOutputs, OutputFile
from lattice.domain.privileged import OpenOutput, OpenOutputFile, Question, digest_of, verb_of
from tests.contract.identities import being
from tests.eventually import eventually

pytestmark = pytest.mark.lab

_PIDS = (
    "find /sys/fs/cgroup/freezer -path '*/job_{0}/*' -name cgroup.procs -exec cat {{}} + | sort -nu"
)


@dataclass(frozen=True)
class Outputs:
    """What the agents of this lab would ask their helpers."""

    lab: Lab
    signer: GrantSigner

    def pids(self, job: int, node: str = "n1") -> tuple[int, ...]:
        """Every process of the job on that node, Slurm's own too."""
        said = self.lab.node(node).run(["sh", "-c", _PIDS.format(job)], check=False).stdout
        return tuple(int(each) for each in said.split())

    def open(
        self,
        job: int,
        *,
        node: str = "n1",
        user: str = "alice",
        pids: tuple[int, ...] | None = None,
    ) -> OpenedOutputs:
        asked = self.pids(job, node) if pids is None else pids
        grant = self._grant(OpenOutput(asked), node, user, job)
        with being(AGENT_USER):
            return asyncio.run(self._port(node).open_output(grant, asked))

    def open_file(self, job: int, path: str, *, user: str = "alice") -> OpenedOutputs:
        grant = self._grant(OpenOutputFile(path), "n1", user, job)
        with being(AGENT_USER):
            return asyncio.run(self._port("n1").open_output_file(grant, path))

    def read(self, job: int, *, node: str = "n1", user: str = "alice") -> dict[str, bytes]:
        """What each file holds, by its path."""
        with self.open(job, node=node, user=user) as opened:
            return {each.path: content(each) for each in opened.files}

    def eventually(
        self, job: int, until: Callable[[dict[str, bytes]], bool], *, node: str = "n1"
    ) -> dict[str, bytes]:
        return eventually(lambda: self.read(job, node=node) if self.pids(job, node) else {}, until)

    def _port(self, node: str) -> HelperOutputs:
        return HelperOutputs(HelperChannel(self.lab.node(node).agent.helper.socket))

    def _grant(self, question: Question, node: str, user: str, job: int) -> str:
        return self.signer.issue(
            verb_of(question).act, node, subject="s", user=user, job_id=job,
            digest=digest_of(question),
        )  # fmt: skip


def content(file: OutputFile) -> bytes:
    return os.pread(file.fd, 65536, 0)


@pytest.fixture
def outputs(quiet_lab: Lab) -> Iterator[Outputs]:
    key = SigningKey.load(quiet_lab.gate.grant_key)
    before = len(list(Path("/proc/self/fd").iterdir()))
    yield Outputs(quiet_lab, GrantSigner(key, SystemClock()))
    assert len(list(Path("/proc/self/fd").iterdir())) <= before


def _run(lab: Lab, *options: str, wrap: str, user: str = "alice") -> int:
    job = lab.sbatch(user, "-w", "n1", *options, wrap=wrap)
    lab.wait_job_state(job, "RUNNING")
    return job


@pytest.mark.spec("LOG-2")
def test_a_batch_job_s_file_closed_to_all_others(quiet_lab: Lab, outputs: Outputs) -> None:
    job = _run(quiet_lab, wrap="umask; echo begun; sleep 300")
    path = f"/home/alice/slurm-{job}.out"
    found = outputs.eventually(job, lambda files: b"begun\n" in files.get(path, b""))
    assert set(found) == {path}
    file = quiet_lab.layout.home / "alice" / f"slurm-{job}.out"
    file.chmod(0o600)
    with outputs.open(job) as opened:
        (one,) = opened.files
        assert {each.descriptor for each in one.holders} >= {1, 2}
        assert opened.watch_fd is not None
        with file.open("a") as more:
            more.write("and more\n")
        assert select.select([opened.watch_fd], [], [], 5)[0]
        assert content(one).endswith(b"and more\n")
    # The same file by the name Slurm has for it.
    with outputs.open_file(job, path) as opened:
        assert content(opened.files[0]).endswith(b"and more\n")


@pytest.mark.spec("LOG-2")
def test_output_and_errors_apart(quiet_lab: Lab, outputs: Outputs) -> None:
    job = _run(quiet_lab, "-o", "o-%j", "-e", "e-%j", wrap="echo out; echo err >&2; sleep 300")
    wanted = {f"/home/alice/o-{job}": b"out\n", f"/home/alice/e-{job}": b"err\n"}
    outputs.eventually(job, lambda files: files == wanted)
    with outputs.open(job) as opened:
        kinds = {file.path[12]: {each.descriptor for each in file.holders} for file in opened.files}
    assert 1 in kinds["o"]
    assert 2 not in kinds["o"]
    assert 2 in kinds["e"]
    assert 1 not in kinds["e"]


@pytest.mark.spec("LOG-2")
def test_steps_inside_a_batch_job_write_to_its_file(quiet_lab: Lab, outputs: Outputs) -> None:
    job = _run(quiet_lab, wrap="srun -n1 sh -c 'echo from the step; sleep 300'")
    path = f"/home/alice/slurm-{job}.out"
    found = outputs.eventually(job, lambda files: files.get(path) == b"from the step\n")
    assert set(found) == {path}
    with outputs.open(job) as opened:
        comms = {
            Path(quiet_lab.node("n1").run(["cat", f"/proc/{each.pid}/comm"]).stdout.strip()).name
            for each in opened.files[0].holders
        }
    assert "srun" in comms


@pytest.mark.spec("LOG-2")
def test_a_file_a_task_on_two_nodes(quiet_lab: Lab, outputs: Outputs) -> None:
    even = ("-N2", "-n4", "--ntasks-per-node=2")
    tasks = "--output=t_%j_%t sh -c 'echo task $SLURM_PROCID; sleep 300'"
    step = f"srun {' '.join(even)} {tasks}"
    job = quiet_lab.sbatch("alice", "-w", "n1,n2", *even, wrap=step)
    quiet_lab.wait_job_state(job, "RUNNING")
    seen: dict[str, bytes] = {}
    for node in ("n1", "n2"):
        found = outputs.eventually(
            job, lambda files: sum("/t_" in each for each in files) == 2 and all(
                text for path, text in files.items() if "/t_" in path
            ), node=node,
        )  # fmt: skip
        mine = {path: text for path, text in found.items() if "/t_" in path}
        assert not mine.keys() & seen.keys()
        seen |= mine
    assert seen == {f"/home/alice/t_{job}_{n}": f"task {n}\n".encode() for n in range(4)}


@pytest.mark.spec("LOG-2")
def test_labelled_lines_of_all_nodes_are_one_node_s_file(quiet_lab: Lab, outputs: Outputs) -> None:
    # Not `all.out`: what begins with "all" is no file name to srun.
    step = "srun -N2 -n2 --label -o every.out sh -c 'echo rank $SLURM_PROCID; sleep 300'"
    job = quiet_lab.sbatch("alice", "-w", "n1,n2", "-N2", "-n2", wrap=step)
    quiet_lab.wait_job_state(job, "RUNNING")
    path = "/home/alice/every.out"
    found = outputs.eventually(job, lambda files: files.get(path, b"").count(b"\n") == 2)
    assert sorted(found[path].splitlines()) == [b"0: rank 0", b"1: rank 1"]
    with outputs.open(job) as opened:
        (labelled,) = [each for each in opened.files if each.path == path]
        assert labelled.comm == "srun"
        assert all(each.descriptor > 2 for each in labelled.holders)
    # There the tasks write into a pipe to slurmstepd, which sends it on.
    with outputs.open(job, node="n2") as opened:
        assert opened.files == ()


@pytest.mark.spec("LOG-2")
def test_labelled_files_a_task_are_slurmstepd_s(quiet_lab: Lab, outputs: Outputs) -> None:
    step = "srun -n2 --label -o l_%j_%t sh -c 'echo rank $SLURM_PROCID; sleep 300'"
    job = _run(quiet_lab, "-n2", wrap=step)
    wanted = {f"/home/alice/l_{job}_{n}": f"{n}: rank {n}\n".encode() for n in range(2)}
    outputs.eventually(job, lambda files: wanted.items() <= files.items())
    with outputs.open(job) as opened:
        named = {each.comm for each in opened.files if "/l_" in each.path}
    assert named == {"slurmstepd"}


@pytest.mark.spec("LOG-2")
def test_a_file_that_only_the_job_sees(quiet_lab: Lab, outputs: Outputs) -> None:
    inside = "mkdir -p m; mount -t tmpfs none m; echo inside >m/x; exec sleep 300 >>m/x"
    job = _run(quiet_lab, "-o", "outer-%j", wrap=f"unshare -Urm sh -c '{inside}'")
    found = outputs.eventually(job, lambda files: b"inside\n" in files.values())
    assert "/home/alice/m/x" in found
    assert not (quiet_lab.layout.home / "alice" / "m" / "x").exists()
    with pytest.raises(DataUnavailable):
        outputs.open_file(job, "/home/alice/m/x")


@pytest.mark.spec("LOG-2")
def test_a_file_in_the_job_s_own_tmp(quiet_lab: Lab, outputs: Outputs) -> None:
    """job_container/tmpfs gives each job a /tmp that nobody else sees."""
    job = _run(quiet_lab, wrap="echo private >/tmp/x; sleep 300 >>/tmp/x")
    found = outputs.eventually(job, lambda files: b"private\n" in files.values())
    assert any(path.endswith("/x") for path, text in found.items() if text == b"private\n")


@pytest.mark.spec("LOG-2")
def test_output_through_a_link(quiet_lab: Lab, outputs: Outputs) -> None:
    home = quiet_lab.layout.home / "alice"
    (home / "real").mkdir(exist_ok=True)
    shutil.chown(home / "real", "alice")
    (home / "link.out").unlink(missing_ok=True)
    (home / "link.out").symlink_to("real/target.out")
    job = _run(quiet_lab, "-o", "/home/alice/link.out", wrap="echo linked; sleep 300")
    outputs.eventually(job, lambda files: files == {"/home/alice/real/target.out": b"linked\n"})
    with outputs.open_file(job, "/home/alice/link.out") as opened:
        assert content(opened.files[0]) == b"linked\n"


@pytest.mark.spec("AUTH-9", "LOG-2")
@pytest.mark.threat("output-link")
def test_links_to_what_is_not_hers(quiet_lab: Lab, outputs: Outputs) -> None:
    home = quiet_lab.layout.home
    secret = home / "bob" / "secret"
    secret.write_text("bob's\n")
    secret.chmod(0o600)
    shutil.chown(secret, "bob", "bob")
    job = _run(quiet_lab, wrap="sleep 300")
    for name, make in (
        ("to-shadow", lambda path: path.symlink_to("/etc/shadow")),
        ("to-bob", lambda path: path.symlink_to("/home/bob/secret")),
        ("hard", lambda path: path.hardlink_to(secret)),
    ):
        path = home / "alice" / name
        path.unlink(missing_ok=True)
        make(path)
        with pytest.raises(DataUnavailable, match="alice"):
            outputs.open_file(job, f"/home/alice/{name}")
    for path in ("/etc/shadow", "/dev/zero", "/proc/self/mem", "/home/bob/secret"):
        with pytest.raises(DataUnavailable):
            outputs.open_file(job, path)
    with outputs.open_file(job, "/home/bob/secret", user="bob") as opened:
        assert content(opened.files[0]) == b"bob's\n"


@pytest.mark.spec("LOG-2")
@pytest.mark.threat("odd-output")
def test_what_is_no_file(quiet_lab: Lab, outputs: Outputs) -> None:
    wrap = "mkfifo fifo 2>/dev/null; sleep 300 1<>fifo & sleep 300 1<>/proc/self/mem & sleep 300"
    job = _run(quiet_lab, "-o", "/dev/zero", wrap=wrap)
    eventually(lambda: len(outputs.pids(job)), lambda count: count >= 5)

    def reasons() -> set[str]:
        with outputs.open(job) as opened:
            assert opened.files == ()
            return {each.why for each in opened.skipped if each.holder.descriptor == 1}

    eventually(
        reasons,
        lambda said: {
            "it is a pipe",
            "it is a terminal or another device",
            "the kernel makes it up: it is no file",
        } <= said,
    )  # fmt: skip


@pytest.mark.spec("AUTH-9", "LOG-2")
@pytest.mark.threat("agent")
def test_processes_of_another_job_or_user_bring_nothing(quiet_lab: Lab, outputs: Outputs) -> None:
    hers = _run(quiet_lab, wrap="echo hers; sleep 300")
    other = _run(quiet_lab, wrap="echo other; sleep 300")
    his = _run(quiet_lab, user="bob", wrap="echo his; sleep 300")
    outputs.eventually(hers, lambda files: b"hers\n" in files.values())
    eventually(lambda: outputs.read(his, user="bob"), lambda files: b"his\n" in files.values())
    strangers = (*outputs.pids(other), *outputs.pids(his), 1)
    with outputs.open(hers, pids=strangers) as opened:
        assert (opened.files, opened.skipped) == ((), ())
    # Her name on his job, and his on hers.
    assert outputs.read(his, user="alice") == {}
    assert outputs.read(hers, user="bob") == {}
    with pytest.raises(PermissionRefused):
        outputs.open(hers, user="root")


@pytest.mark.spec("LOG-2")
def test_what_slurm_holds_of_its_own_is_not_shown(quiet_lab: Lab, outputs: Outputs) -> None:
    """slurmstepd writes to slurmd's log too; even one that all may read is none of the job's."""
    log = quiet_lab.layout.log / "slurmd.n1.log"
    before = log.stat().st_mode
    log.chmod(0o644)
    try:
        job = _run(quiet_lab, wrap="echo mine; sleep 300")
        found = outputs.eventually(job, lambda files: b"mine\n" in files.values())
        assert set(found) == {f"/home/alice/slurm-{job}.out"}
    finally:
        log.chmod(before)


def test_a_helper_ends_with_its_node_and_comes_back_with_its_agent(quiet_lab: Lab) -> None:
    node = quiet_lab.node("n3")
    assert node.agent.helper.process.alive
    try:
        node.power_cut()
        assert not node.agent.helper.process.alive
    finally:
        node.start()
        node.agent.start()
    assert node.agent.helper.process.alive
    quiet_lab.slurm.wait_nodes(["n3"])
