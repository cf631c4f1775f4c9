"""What a job wrote is all there, once and in order, whatever failed meanwhile.

Real processes, real files. The lines prove themselves: `log_lines`.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from lab.addresses import SEAWEED_S3_PORT
from lab.laboratory import Lab
from lattice.base.failpoints import VARIABLE
from tests.e2e.log_lines import Gate, numbers, script
from tests.e2e.people import Person, Said
from tests.eventually import PATIENCE_S, eventually

pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]

_PROXY_PORT = 21999


@pytest.fixture(autouse=True)
def as_before(quiet_lab: Lab) -> Iterator[None]:
    """Whatever a story did to agents and servers."""
    yield
    for name in ("n1", "n2", "n3"):
        agent = quiet_lab.node(name).agent
        if agent.changes:
            agent.changes.clear()
            agent.kill()
        agent.start()
    for server in quiet_lab.servers:
        if server.environment.pop(VARIABLE, ""):
            server.process.kill()
        server.process.up()


def written(lab: Lab, job: int) -> Path:
    return lab.layout.home / "alice" / f"slurm-{job}.out"


def said_of(alice: Person, job: int, *words: str) -> Said:
    return alice.tries("logs", str(job), *words)


def complete(
    alice: Person, job: int, writer: str, count: int, patience_s: float = PATIENCE_S
) -> None:
    """Every line once and in order."""
    seen = eventually(
        lambda: numbers(said_of(alice, job, "--grep", f" {writer}\\.").out.splitlines(), writer),
        lambda found: len(found) >= count,
        patience_s=patience_s,
    )
    assert seen == list(range(count))


def stored(lab: Lab, alice: Person, job: int) -> None:
    """Nothing of the job waits on a node any more."""
    folders = [lab.node(name).agent.folder / "state" / "logs" for name in ("n1", "n2", "n3")]
    eventually(
        lambda: [each for folder in folders for each in folder.glob(f"{job}-*")],
        lambda left: not left,
    )


@contextmanager
def with_objects(lab: Lab, keys: Mapping[str, Any]) -> Iterator[None]:
    """Servers whose object store is another one, or reached another way."""
    before = {each: yaml.safe_load(each.config_file.read_text()) for each in lab.servers}
    try:
        for server, told in before.items():
            server.write_config(told | {"objects": told["objects"] | keys})
            server.process.restart()
        yield
    finally:
        for server, told in before.items():
            server.write_config(told)
            server.process.restart()


@pytest.mark.spec("LOG-3")
@pytest.mark.long
def test_a_store_that_is_slow_torn_and_answers_503(quiet_lab: Lab, alice: Person) -> None:
    """Four of ten requests fail in one of seven ways, while jobs end and people read."""
    upstream = f"{quiet_lab.seaweedfs.endpoint.removeprefix('http://')}"
    assert upstream.endswith(str(SEAWEED_S3_PORT))
    argv = ["-m", "tests.e2e.faulty_store", str(_PROXY_PORT), upstream, "0.4", "7"]
    with quiet_lab.enter_network():
        proxy = quiet_lab.control.room.popen(
            [sys.executable, *argv], cwd=str(Path(__file__).parents[2])
        )
    try:
        assert proxy.stdout is not None
        assert proxy.stdout.readline() == "ready\n"
        with with_objects(quiet_lab, {"endpoint": f"http://127.0.0.1:{_PROXY_PORT}"}):
            jobs = [
                quiet_lab.sbatch("alice", wrap=script(f"f{number}", 500, size=100))
                for number in range(3)
            ]
            for job in jobs:
                quiet_lab.wait_job_state(job, "COMPLETED")
            for number, job in enumerate(jobs):
                complete(alice, job, f"f{number}", 500)
                stored(quiet_lab, alice, job)
    finally:
        proxy.kill()
        proxy.communicate()
    for number, job in enumerate(jobs):
        complete(alice, job, f"f{number}", 500)


@pytest.mark.spec("LOG-3")
@pytest.mark.parametrize(
    "away_s", [pytest.param(15, id="15 s"), pytest.param(60, id="60 s", marks=pytest.mark.long)]
)
def test_the_store_away(quiet_lab: Lab, alice: Person, away_s: int) -> None:
    """Following goes on meanwhile; everything is stored when it is back."""
    store, lines = quiet_lab.seaweedfs.process, away_s * 15
    job = quiet_lab.sbatch("alice", wrap=script("w", lines, pause_s=0.03))
    quiet_lab.wait_job_state(job, "RUNNING")
    began = time.monotonic()
    store.freeze()
    try:
        followed = alice.lattice(
            "logs", str(job), "--follow", "--stdout", env=alice.bearer, timeout_s=120
        )
        live = numbers(followed.out.splitlines(), "w")
        time.sleep(max(0.0, away_s - (time.monotonic() - began)))
    finally:
        store.thaw()
    assert live == list(range(lines)), followed.err
    complete(alice, job, "w", lines)
    stored(quiet_lab, alice, job)


@pytest.mark.spec("LOG-3")
@pytest.mark.parametrize("name", ["intake.verified", "intake.stored"])
@pytest.mark.long
def test_a_server_killed_while_storing(quiet_lab: Lab, alice: Person, name: str) -> None:
    """Before the object is there, and after it is there and before the node has heard so."""
    for server in quiet_lab.servers:
        server.process.kill()
        server.environment[VARIABLE] = name
        server.process.up()
    job = quiet_lab.sbatch("alice", wrap=script("s", 300))
    quiet_lab.wait_job_state(job, "COMPLETED")
    eventually(lambda: [each for each in quiet_lab.servers if not each.process.alive], bool)
    for server in quiet_lab.servers:
        server.process.kill()
        del server.environment[VARIABLE]
        server.process.up()
    complete(alice, job, "s", 300)
    stored(quiet_lab, alice, job)
    complete(alice, job, "s", 300)


@pytest.mark.spec("LOG-3")
@pytest.mark.long
def test_an_agent_replaced_by_a_newer_one(quiet_lab: Lab, alice: Person) -> None:
    """Stopped in order and started again, three times while the job writes."""
    job = quiet_lab.sbatch("alice", "--nodelist=n1", wrap=script("u", 600, pause_s=0.02))
    quiet_lab.wait_job_state(job, "RUNNING")
    agent = quiet_lab.node("n1").agent
    following = quiet_lab.popen_as(
        "alice", ["lattice", "logs", str(job), "--follow"], env=alice.bearer
    )
    for _ in range(3):
        time.sleep(2)
        agent.stop()
        time.sleep(1)
        agent.start()
    out, err = following.communicate(timeout=120)
    assert following.returncode == 0, err
    assert numbers(out.splitlines(), "u") == list(range(600)), err
    complete(alice, job, "u", 600)


def _renamed(file: Path) -> None:
    file.rename(file.with_suffix(".old"))


def _rotated(file: Path) -> None:
    """As a tool rotates that keeps the name: the old text elsewhere, another file in its place."""
    file.rename(file.with_suffix(".1"))
    file.touch()


def _deleted(file: Path) -> None:
    file.unlink()


def _truncated(file: Path) -> None:
    with file.open("r+") as open_file:
        open_file.truncate()


@pytest.mark.spec("LOG-3")
@pytest.mark.parametrize("act", [_renamed, _rotated, _deleted, _truncated])
def test_a_file_that_is(quiet_lab: Lab, alice: Person, act: Callable[[Path], None]) -> None:
    """Done to the file between two halves of the output, after the first half was read."""
    half = script("h", 200)
    gate = Gate(quiet_lab)
    job = quiet_lab.sbatch("alice", wrap=f"{half}; {gate.wait}; {script('i', 200)}")
    quiet_lab.wait_job_state(job, "RUNNING")
    complete(alice, job, "h", 200)
    act(written(quiet_lab, job))
    gate.open()
    quiet_lab.wait_job_state(job, "COMPLETED")
    complete(alice, job, "i", 200)
    complete(alice, job, "h", 200)
    stored(quiet_lab, alice, job)
    complete(alice, job, "h", 200)


@pytest.mark.spec("LOG-3")
@pytest.mark.long
def test_text_that_was_gone_before_it_was_read(quiet_lab: Lab, alice: Person) -> None:
    """The node's spool is full, so nothing is read; the file is cut meanwhile. The gap is told."""
    agent = quiet_lab.node("n1").agent
    agent.kill()
    agent.changes["logs"] = {"spool_mb": 16}
    agent.start()
    full, cut = Gate(quiet_lab, "full"), Gate(quiet_lab, "cut")
    written_so_far = quiet_lab.layout.home / "alice" / "written"
    steps = (
        f"{script('g', 40_000, size=1000, noise=True)}; touch ~/written; {full.wait}",
        f"{script('x', 5_000, size=1000)}; touch ~/written; {cut.wait}",
        script("j", 400),
    )
    quiet_lab.seaweedfs.process.freeze()
    try:
        job = quiet_lab.sbatch("alice", "--nodelist=n1", wrap="; ".join(steps))
        eventually(written_so_far.exists, bool)
        written_so_far.unlink()
        spool = agent.folder / "state" / "logs"
        eventually(lambda: _steady_bytes(spool), lambda size: size >= 16 << 20)
        # From here on nothing is read: whether there is room is looked at every second.
        full.open()
        eventually(written_so_far.exists, bool)
        written_so_far.unlink()
        # How much is lost is known of what was seen: a look a second, and later on a busy machine.
        time.sleep(6)
        size = written(quiet_lab, job).stat().st_size
        _truncated(written(quiet_lab, job))
        cut.open()
        quiet_lab.wait_job_state(job, "COMPLETED")
    finally:
        quiet_lab.seaweedfs.process.thaw()
    complete(alice, job, "j", 400, 120)
    told = said_of(alice, job, "-o", "json").out.splitlines()
    (gap,) = [each for each in map(json.loads, told) if each["type"] == "gap"]
    assert gap["offset"] + gap["lost_bytes"] == size, "not a byte more or less than is missing"
    whole = [json.loads(each) for each in told if '"line"' in each]
    texts = [each["text"] for each in whole if each["seq"] != gap["seq"]]
    assert numbers(texts, "g") == list(range(gap["seq"])), "every line before the gap"
    assert not numbers(texts, "x"), "written while there was no room, and gone"


def _steady_bytes(folder: Path) -> int:
    """The size of what is in a folder, 0 while it grows."""
    sizes = []
    for _ in range(2):
        sizes.append(sum(each.stat().st_size for each in folder.rglob("*") if each.is_file()))
        time.sleep(2)
    return sizes[1] if sizes[0] == sizes[1] else 0


@pytest.mark.spec("LOG-3")
def test_a_node_without_power(quiet_lab: Lab, alice: Person) -> None:
    """Its job dies with it; what stood in the file is there when the node is back."""
    job = quiet_lab.sbatch(
        "alice", "--nodelist=n2", "--no-requeue", wrap=f"{script('p', 400, pause_s=0.01)}; sleep 60"
    )
    quiet_lab.wait_job_state(job, "RUNNING")
    file = written(quiet_lab, job)
    eventually(lambda: file.exists() and file.read_text().count("\n"), lambda seen: seen > 200)
    quiet_lab.node("n2").power_cut()
    try:
        left = numbers(file.read_text().splitlines(), "p")
        time.sleep(5)
    finally:
        quiet_lab.node("n2").start()
        quiet_lab.slurm.wait_nodes(["n1", "n2", "n3"])
        quiet_lab.node("n2").agent.start()
    eventually(
        lambda: numbers(said_of(alice, job).out.splitlines(), "p"),
        lambda seen: len(seen) >= len(left),
    )
    assert numbers(said_of(alice, job).out.splitlines(), "p") == left


@pytest.mark.spec("LOG-3")
def test_a_job_id_that_is_used_again(quiet_lab: Lab, alice: Person, bob: Person) -> None:
    job = quiet_lab.sbatch("alice", wrap="echo the elder")
    quiet_lab.wait_job_state(job, "COMPLETED")
    eventually(lambda: said_of(alice, job).out, lambda text: text == "the elder\n")
    quiet_lab.slurm.reset_controller(first_job_id=job)
    again = quiet_lab.sbatch("bob", "-A", "genomics", wrap="echo the younger")
    assert again == job
    eventually(lambda: said_of(bob, job).out, lambda text: text == "the younger\n")
    assert said_of(alice, job).out == "the elder\n"


@pytest.mark.spec("LOG-3")
@pytest.mark.long
def test_a_folder_as_the_store(quiet_lab: Lab, alice: Person) -> None:
    """The same stories, in short, on the store of a single server."""
    folder = quiet_lab.servers[0].config_file.parent / "objects"
    only, other = quiet_lab.servers
    other.process.stop()
    before = yaml.safe_load(only.config_file.read_text())
    try:
        only.write_config(before | {"objects": {"url": f"file://{folder}"}})
        only.process.restart()
        eventually(lambda: alice.tries("status").code, lambda code: code == 0)
        job = quiet_lab.sbatch("alice", "--nodelist=n1", wrap=script("d", 400, pause_s=0.02))
        quiet_lab.wait_job_state(job, "RUNNING")
        eventually(lambda: alice.card(job)["allocation"]["state"], lambda state: state == "running")
        following = quiet_lab.popen_as(
            "alice", ["lattice", "logs", str(job), "--follow"], env=alice.bearer
        )
        time.sleep(2)
        quiet_lab.node("n1").agent.kill()
        quiet_lab.node("n1").agent.start()
        only.process.kill()
        only.process.up()
        out, err = following.communicate(timeout=120)
        assert following.returncode == 0, err
        assert numbers(out.splitlines(), "d") == list(range(400)), err
        complete(alice, job, "d", 400)
        stored(quiet_lab, alice, job)
        complete(alice, job, "d", 400)
    finally:
        only.write_config(before)
        only.process.restart()
        other.process.up()
