"""The eBPF program in the real kernel, behind the real helper, against what programs measured.

No Slurm: groups named as Slurm names them are all that the kernel and the helper go by. The slow
disk is a loop device that the kernel itself throttles to a number of reads a second.
"""

from __future__ import annotations

import base64
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from lab import users
from lattice.adapters.helper.counters import HelperCounterLine
from lattice.base import packet
from lattice.base.clock import SystemClock
from lattice.base.signatures import SigningKey
from lattice.domain.counters import LATENCY, PEERS, peers_of
from lattice.domain.latency import EDGES, FileCalls, timings_of
from lattice.domain.measured import JobSnapshot, Shown, ShownValue, shown_of
from lattice.domain.metric import Sample
from lattice.domain.nodejobs import JobIdentity, NodeJob, StartSign
from lattice.helper import bpfload
from lattice.helper.conversation import NoValues
from lattice.helper.latency import GroupsByNumber, LatencyMaps, latency_maps
from lattice.helper.peers import JobPeers, KernelPeers
from lattice.helper.privilege import Kernel
from lattice.probes.facts.peers import address_text
from lattice.probes.helper_cache import HelperReadings
from lattice.probes.latency import IO_LATENCY, RETRANSMITS, LatencyProbe
from tests.contract.identities import being
from tests.eventually import eventually

pytestmark = [
    pytest.mark.lab,
    pytest.mark.timeout(120),
    pytest.mark.skipif(os.geteuid() != 0, reason="the helper is started as root"),
]

_PLACE = f"lt{os.getpid()}"
_CGROUP = Path("/sys/fs/cgroup")
_V2 = (_CGROUP / "cgroup.controllers").exists()
_BLKIO = _CGROUP / "blkio" / _PLACE
_JOIN = 'for each in $1; do echo $$ >"$each" || exit 125; done; shift; exec "$@"'
_PRELUDE = """
import json, mmap, os, socket, subprocess, sys, threading, time
target = sys.argv[1]
def said(word):
    # Pipes are not files: what is said and heard here is not counted.
    os.write(1, (json.dumps(word) + "\\n").encode())
def heard():
    return os.read(0, 100)
def timed(work, times):
    took = []
    for at in range(times):
        begun = time.perf_counter_ns()
        work(at)
        took.append((time.perf_counter_ns() - begun) / 1e9)
    return took
"""


@dataclass
class Program:
    """A Python program in a job, which says a word of JSON a line and hears one before it acts."""

    process: subprocess.Popen[bytes]

    def say(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(b"go\n")
        self.process.stdin.flush()

    def hear(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the program ended"
        return json.loads(line)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for each in (self.process.stdin, self.process.stdout):
            assert each is not None
            with suppress(OSError):
                each.close()


@dataclass
class Node:
    """A helper that times, and jobs beside it."""

    folder: Path
    line: HelperCounterLine
    programs: list[Program] = field(default_factory=list)
    groups: list[Path] = field(default_factory=list)

    def group(self, job: int, *below: str) -> Path:
        """A folder of the job's; the job's own without a name below it."""
        base = f"system.slice/{_PLACE}_slurmstepd.scope" if _V2 else f"freezer/slurm_{_PLACE}/uid_0"
        path = _CGROUP / base / f"job_{job}"
        for name in ("", *below):
            path = path / name
            path.mkdir(parents=True, exist_ok=True)
            self.groups.append(path)
        return path

    def identity(self, job: int) -> JobIdentity:
        return JobIdentity("boot", job, self.group(job).stat().st_ino, time.time())

    def start(
        self, job: int, text: str, target: Path | str = "", *also: Path, wrap: Sequence[str] = ()
    ) -> Program:
        """Answers when it has said its first word, which is `ready`."""
        groups = [self.group(job, "step_0"), *also]
        joined = " ".join(str(each / "cgroup.procs") for each in groups)
        python = [sys.executable, "-I", "-c", _PRELUDE + text, str(target)]
        process = subprocess.Popen(
            ["/bin/sh", "-c", _JOIN, "join", joined, *wrap, *python],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        program = Program(process)
        self.programs.append(program)
        assert program.hear() == "ready"
        return program

    def look(self, identity: JobIdentity) -> JobSnapshot:
        node_job = NodeJob(identity=identity, started_by=StartSign.FOLDER)
        clock = SystemClock()
        # A new one each time: what was told is good for half a second.
        probe = LatencyProbe(HelperReadings(self.line, clock), clock)
        with being(users.AGENT_USER):
            readings = probe.read([node_job])[identity]
        return JobSnapshot(identity, time.time(), 1.0, tuple(readings))

    def close(self) -> None:
        for each in self.programs:
            each.close()
        made = {each for group in self.groups for each in (group, *group.parents)}
        for group in sorted(made, key=lambda each: len(each.parts), reverse=True):
            if _PLACE in str(group):
                _remove(group)


def _remove(group: Path) -> None:
    deadline = time.monotonic() + 5
    while group.is_dir() and time.monotonic() < deadline:
        with suppress(OSError):
            group.rmdir()
            return
        time.sleep(0.02)


@pytest.fixture(scope="module")
def line(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HelperCounterLine]:
    users.ensure_accounts()
    folder = Path("/run") / f"lattice-{_PLACE}"
    folder.mkdir(mode=0o755)
    folder.chmod(0o755)
    keys = folder / "keys"
    keys.write_text(base64.b64encode(SigningKey.generate().public).decode())
    log = tmp_path_factory.mktemp("helper") / "log"
    with log.open("wb") as opened:
        helper = subprocess.Popen(
            [
                *(sys.executable, "-I", "-m", "lattice.helper", "--role", "node"),
                *("--place", _PLACE, "--socket", str(folder / "socket")),
                *("--allow-user", users.AGENT_USER, "--grant-keys", str(keys)),
            ],
            stderr=opened,
        )
    try:
        eventually((folder / "socket").exists)
        events = [json.loads(each) for each in log.read_text().splitlines()]
        assert [each for each in events if each["event"] == "latency"], events
        line = HelperCounterLine(folder / "socket", SystemClock(), timeout_s=60.0)
        yield line
        line.close()
    finally:
        helper.terminate()
        helper.wait()
        subprocess.run(["rm", "-r", str(folder)], check=True)


@pytest.fixture
def node(line: HelperCounterLine, tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path, line)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[str]:
    if not _BLKIO.parent.is_dir():
        pytest.skip("no blkio controller to throttle a disk with")
    file = tmp_path / "disk"
    with file.open("wb") as opened:
        opened.truncate(64 * 2**20)
    found = subprocess.run(
        ["losetup", "--find", "--show", str(file)], capture_output=True, text=True, check=True
    )
    device = found.stdout.strip()
    try:
        yield device
    finally:
        subprocess.run(["losetup", "--detach", device], check=True)


@pytest.fixture
def throttle(disk: str) -> Iterator[Callable[[str, int], Path]]:
    """A group in which the disk gives so many reads a second."""
    made: list[Path] = []

    def group(name: str, reads_a_second: int) -> Path:
        path = _BLKIO / name
        path.mkdir(parents=True, exist_ok=True)
        made.append(path)
        number = Path(disk).stat().st_rdev
        limit = f"{os.major(number)}:{os.minor(number)} {reads_a_second}"
        (path / "blkio.throttle.read_iops_device").write_text(limit)
        return path

    yield group
    for each in [*made, _BLKIO]:
        _remove(each)


def counted(before: JobSnapshot, now: JobSnapshot) -> int:
    """How many calls there were between two looks."""

    def total(look: JobSnapshot) -> float:
        (sample,) = (each for each in look.of(IO_LATENCY) if each.label("le") == "+Inf")
        return sample.value

    assert not look_reasons(before) + look_reasons(now)
    return int(total(now) - total(before))


def look_reasons(look: JobSnapshot) -> list[str]:
    return [each.reason for each in look.readings if not isinstance(each, Sample)]


def p99_us(before: JobSnapshot, now: JobSnapshot) -> float:
    (shown,) = shown_of(Shown.IO_LATENCY_P99, before, now)
    assert isinstance(shown, ShownValue), shown
    return shown.value


def p99_of(took_s: Sequence[float]) -> float:
    return sorted(took_s)[math.ceil(0.99 * len(took_s)) - 1]


def is_within_its_bucket(edge_us: float, measured_s: float) -> bool:
    """Whether the edge is that of the bucket a figure is in, give or take what calling costs."""
    edges = [float(each) for each in EDGES]
    place = edges.index(edge_us / 1e6)
    below = edges[place - 1] if place else 0.0
    return below * 0.95 <= measured_s <= edges[place] * 1.1


DIRECT_READS = """
file = os.open(target, os.O_RDONLY | os.O_DIRECT)
block = mmap.mmap(-1, 4096)
said("ready")
while heard():
    said(timed(lambda at: os.preadv(file, [block], at * 4096), {times}))
"""


@pytest.mark.spec("TOP-1", "TOP-2")
def test_the_p99_of_a_slow_disk_is_the_program_s_own_and_jobs_are_kept_apart(
    disk: str, throttle: Callable[[str, int], Path], node: Node
) -> None:
    """Three at once on one disk: each has its own number of calls and its own p99."""
    times = {71: 20, 72: 300, 73: 1000}
    programs = [
        node.start(71, DIRECT_READS.format(times=times[71]), disk, throttle("slow", 5)),
        node.start(72, DIRECT_READS.format(times=times[72]), disk, throttle("slower", 150)),
        node.start(73, DIRECT_READS.format(times=times[73]), disk),
    ]
    jobs = {job: node.identity(job) for job in (*times, 74)}
    before = {job: node.look(identity) for job, identity in jobs.items()}
    for each in programs:
        each.say()
    took = dict(zip(times, (each.hear() for each in programs), strict=True))
    now = {job: node.look(identity) for job, identity in jobs.items()}
    for job, expected in times.items():
        assert counted(before[job], now[job]) == expected
    for job in (71, 72):
        shown, own = p99_us(before[job], now[job]), p99_of(took[job])
        assert is_within_its_bucket(shown, own), (job, shown, own)
    # What a busy machine adds to the quickest of calls is mostly outside of them.
    assert p99_us(before[73], now[73]) < p99_us(before[71], now[71])
    assert counted(before[74], now[74]) == 0


EVERY_CALL = """
file = os.open(target, os.O_RDWR | os.O_CREAT)
said("ready")
heard()
os.write(file, b"x" * 100)
os.writev(file, [b"y", b"z"])
os.pwrite(file, b"x", 7)
os.pwritev(file, [b"x"], 8)
os.pwritev(file, [b"x"], 8, os.RWF_SYNC)
os.fsync(file)
os.fdatasync(file)
os.lseek(file, 0, 0)
os.read(file, 10)
os.readv(file, [bytearray(3)])
os.pread(file, 5, 2)
os.preadv(file, [bytearray(3)], 1)
os.preadv(file, [bytearray(3)], 1, os.RWF_HIPRI)
said("done")
heard()
"""


@pytest.mark.spec("TOP-1")
def test_every_way_to_read_and_write_a_file_counts_once(node: Node, tmp_path: Path) -> None:
    program = node.start(75, EVERY_CALL, tmp_path / "file")
    before = node.look(node.identity(75))
    program.say()
    assert program.hear() == "done"
    assert counted(before, node.look(before.identity)) == 12


NO_FILES = """
reader, writer = os.pipe()
left, right = socket.socketpair()
event = os.eventfd(1) if hasattr(os, "eventfd") else None
zero, null = os.open("/dev/zero", os.O_RDONLY), os.open("/dev/null", os.O_WRONLY)
table, group = os.open("/proc/self/stat", os.O_RDONLY), os.open("/proc/self/cgroup", os.O_RDONLY)
node = os.open("/sys/kernel/mm/transparent_hugepage/enabled", os.O_RDONLY)
said("ready")
heard()
for _ in range(20):
    os.write(writer, b"x"); os.read(reader, 1)
    os.write(left.fileno(), b"x"); os.read(right.fileno(), 1)
    os.read(zero, 10); os.write(null, b"x")
    for each in (table, group, node):
        os.pread(each, 100, 0)
    if event is not None:
        os.read(event, 8); os.write(event, (1).to_bytes(8, "little"))
    try:
        os.read(997, 1)
    except OSError:
        pass
said("done")
heard()
"""


@pytest.mark.spec("TOP-1")
def test_what_is_no_file_does_not_count(node: Node) -> None:
    """Pipes, sockets, devices, event descriptors, the kernel's own tables, closed descriptors."""
    program = node.start(82, NO_FILES)
    before = node.look(node.identity(82))
    program.say()
    assert program.hear() == "done"
    assert counted(before, node.look(before.identity)) == 0


MANY_THREADS = """
file = os.open(target, os.O_RDONLY)
def work():
    for at in range(50):
        os.pread(file, 8, at)
threads = [threading.Thread(target=work) for _ in range(16)]
said("ready")
heard()
for each in threads: each.start()
for each in threads: each.join()
for _ in range(40):
    child = os.fork()
    if child == 0:
        os.pread(file, 8, 0)
        os._exit(0)
    os.waitpid(child, 0)
said("done")
heard()
"""


@pytest.mark.spec("TOP-1", "TOP-2")
def test_threads_and_short_lived_children_count_each(node: Node, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"x" * 100)
    program = node.start(76, MANY_THREADS, file)
    before = node.look(node.identity(76))
    program.say()
    assert program.hear() == "done"
    assert counted(before, node.look(before.identity)) == 16 * 50 + 40


SOME_READS = """
file = os.open(target, os.O_RDONLY)
said("ready")
while heard():
    for at in range(5):
        os.pread(file, 8, at)
    said("done")
"""


@pytest.mark.spec("TOP-2")
def test_a_thread_that_changes_its_job_counts_where_it_is(node: Node, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"x" * 100)
    program = node.start(77, SOME_READS, file)
    first, second = node.identity(77), node.identity(78)
    before = {each: node.look(each) for each in (first, second)}
    program.say()
    assert program.hear() == "done"
    pid = str(program.process.pid)
    # A group that a user makes below a job of his, whatever its name, is of that job.
    (node.group(78, "step_0", "job_77") / "cgroup.procs").write_text(pid)
    for _ in range(2):
        program.say()
        assert program.hear() == "done"
    assert counted(before[first], node.look(first)) == 5
    assert counted(before[second], node.look(second)) == 10


@pytest.mark.spec("TOP-2")
def test_a_later_job_of_the_same_number_begins_anew(node: Node, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"x" * 100)
    program = node.start(79, SOME_READS, file)
    old = node.identity(79)
    program.say()
    assert program.hear() == "done"
    node.close()
    assert look_reasons(node.look(JobIdentity("boot", 79, old.inode, 0.0))) != []
    program = node.start(79, SOME_READS, file)
    new = node.identity(79)
    assert new.inode != old.inode
    before = node.look(new)
    program.say()
    assert program.hear() == "done"
    assert counted(before, node.look(new)) == 5
    assert look_reasons(node.look(old)) != []


@pytest.mark.spec("SRC-2")
def test_a_job_that_finds_no_room_in_the_kernel_has_no_zeros(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"x" * 100)
    monkeypatch.setattr(bpfload, "room_for_jobs", lambda _: 1)
    loaded = bpfload.load(bpfload.default_object())
    try:
        maps = LatencyMaps(latency_maps(Kernel(), loaded), GroupsByNumber(_CGROUP, _PLACE))
        for job in (83, 84):
            program = node.start(job, SOME_READS, file)
            program.say()
            assert program.hear() == "done"
        rows = maps.read((LATENCY,), (83, 84))[LATENCY]
        # Other jobs of this machine may have been first; the second of these never is.
        assert timings_of(rows[84]) == [None]
    finally:
        packet.close_all(
            (loaded.jobs, loaded.namespaces, loaded.lost, loaded.peers, loaded.walk, *loaded.links)
        )


TWO_FILE_SYSTEMS = """
subprocess.run(["mount", "-t", "tmpfs", "tmpfs", target + "/other"], check=True)
here = os.open(target + "/file", os.O_RDWR | os.O_CREAT)
there = os.open(target + "/other/file", os.O_RDWR | os.O_CREAT)
said("ready")
heard()
os.pwrite(here, b"x" * 1000, 0)
os.pread(here, 300, 0)
os.fsync(here)
for at in range(10):
    os.pwrite(there, b"y" * 100, 0)
os.pread(there, 1000, 0)
said(["%d:%d" % (os.major(each), os.minor(each)) for each in
      (os.fstat(here).st_dev, os.fstat(there).st_dev)])
heard()
"""


@pytest.mark.spec("DIAG-3")
def test_reads_and_writes_are_told_apart_by_file_system(node: Node, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    loaded = bpfload.load(bpfload.default_object())
    try:
        maps = LatencyMaps(latency_maps(Kernel(), loaded), GroupsByNumber(_CGROUP, _PLACE))
        program = node.start(85, TWO_FILE_SYSTEMS, tmp_path, wrap=("unshare", "-m"))
        before = maps.calls(85)
        program.say()
        here, there = program.hear()
        found = maps.calls(85)
        first = before.get(here, FileCalls())
        assert found[here].calls - first.calls == 3
        assert found[here].read_bytes - first.read_bytes == 300
        assert found[here].write_bytes - first.write_bytes == 1000
        assert (found[there].calls, found[there].write_bytes) == (11, 1000)
        assert found[there].read_bytes == 100
        assert found[there].spent_ns > 0
        assert maps.calls(85).keys() >= {here, there}
        with pytest.raises(NoValues, match="no control group"):
            maps.calls(86)
    finally:
        packet.close_all(
            (loaded.jobs, loaded.namespaces, loaded.lost, loaded.peers, loaded.walk, *loaded.links)
        )


ONE_OPEN_ONE_CLOSED = """
listener = socket.create_server(("127.0.0.1", 0))
said("ready")
heard()
def connected():
    client = socket.create_connection(listener.getsockname())
    server, _ = listener.accept()
    return client, server
def move(sender, receiver, count):
    sender.sendall(b"x" * count)
    while count:
        count -= len(receiver.recv(65536))
closed, other = connected()
move(closed, other, 40000)
closed.close(); other.close()
client, server = connected()
move(client, server, 30000)
move(server, client, 1000)
time.sleep(0.2)
said("moved")
heard()
"""


@pytest.mark.spec("DIAG-2")
def test_what_a_job_sends_to_an_address_is_counted_over_open_and_closed_connections(
    node: Node,
) -> None:
    """Each byte once by who sent it and once by who got it: both ends are the job's."""
    loaded = bpfload.load(bpfload.default_object())
    try:
        groups = GroupsByNumber(_CGROUP, _PLACE)
        peers = JobPeers(KernelPeers(Kernel(), loaded.peers, loaded.walk), groups)
        program = node.start(87, ONE_OPEN_ONE_CLOSED)
        node.group(88)
        program.say()
        assert program.hear() == "moved"
        rows = peers.read((PEERS,), (87, 88))[PEERS]
        assert rows[88] == []
        (found,) = peers_of(rows[87], node.identity(87).inode) or ()
        assert address_text(found.address) == "127.0.0.1"
        # The signs that open and close a connection count as a byte each.
        assert 0 <= found.sent - 71_000 <= 8
        assert 0 <= found.received - 71_000 <= 8
    finally:
        packet.close_all(
            (loaded.jobs, loaded.namespaces, loaded.lost, loaded.peers, loaded.walk, *loaded.links)
        )


RETRANSMITS_OF_AN_ACCEPTED_SOCKET = """
def run(*words):
    subprocess.run(words, check=True)
run("ip", "link", "set", "lo", "up")
listener = socket.create_server(("127.0.0.1", 5001))
client = socket.create_connection(("127.0.0.1", 5001))
server, _ = listener.accept()
def sent_again():  # tcpi_total_retrans
    info = server.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
    return int.from_bytes(info[100:104], "little")
# The answer to the client's first word may have been one, and was nobody's then.
before = sent_again()
run("nft", "add table ip t; add chain ip t in { type filter hook input priority 0; };"
    " add rule ip t in tcp sport 5001 drop")
said("ready")
heard()
server.sendall(b"x" * 1000)
time.sleep(1.5)
run("nft", "delete table ip t")
got = 0
while got < 1000:
    got += len(client.recv(1000))
time.sleep(0.3)
said(sent_again() - before)
heard()
"""


@pytest.mark.spec("TOP-2")
def test_segments_sent_again_are_the_job_s_whose_socket_it_is(node: Node) -> None:
    """As the kernel counts them for that very connection, which was accepted, not opened."""
    program = node.start(80, RETRANSMITS_OF_AN_ACCEPTED_SOCKET, wrap=("unshare", "-n"))
    other = node.identity(81)
    program.say()
    sent_again = program.hear()
    (sample,) = node.look(node.identity(80)).of(RETRANSMITS)
    assert sent_again > 1
    assert (sample.value, sample.label("scope")) == (sent_again, "job")
    (none,) = node.look(other).of(RETRANSMITS)
    assert (none.value, none.label("scope")) == (0, "job")
