"""The root helper opens outputs by the owner's rights alone, whatever stands behind a descriptor.

Real processes and the real kernel; attacks of a job on the one who reads its output.
"""

from __future__ import annotations

import itertools
import os
import pwd
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lattice.adapters.helper.channel import HelperChannel
from lattice.adapters.helper.outputs import HelperOutputs
from lattice.base.errors import DataUnavailable, PermissionRefused, Unavailable, UsageError
from lattice.helper.kernel_texts import text_of
from lattice.helper.process import pinned
from tests.eventually import eventually
from tests.integration.output_bench import JOB, Bench, content

pytestmark = pytest.mark.lab

PYTHON = "/usr/bin/python3"
SLEEP = ("sleep", "300")
SWAPS = int(os.environ.get("LATTICE_SWAPS", "250"))
# Every other turn the name means the first of the files.
_SWAP = """
import os, sys, time
link, good, *bad = sys.argv[1:]
while True:
    for each in bad:
        for target in (each, good):
            os.symlink(target, link + ".new")
            os.rename(link + ".new", link)
            time.sleep(0.0005)
"""
# Processes of two users take turns on one pid, in a job of the first.
_TURNS = """
while :; do
  for user in alice bob; do
    echo $2 >/proc/sys/kernel/ns_last_pid
    sh -c 'echo $$ >$0; exec setpriv --reuid=$1 --clear-groups sleep 0.05' $1 $user >>$3-$user
  done
done
"""


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    if os.geteuid() != 0:
        pytest.skip("the helper is started as root")
    # Not below /tmp, which others may have made private.
    folder = Path(tempfile.mkdtemp(prefix="lattice-outputs-", dir="/var/lib"))
    made = Bench(folder)
    try:
        yield made
    finally:
        made.close()
        shutil.rmtree(folder)


@pytest.fixture(autouse=True)
def _nothing_is_left(bench: Bench) -> Iterator[None]:
    before = _open_descriptors()
    yield
    bench.end_all()
    assert _open_descriptors() <= before, "what was open before may be closed meanwhile"


def _open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def _named(bench: Bench, name: str, program: str) -> str:
    """The program under another name: the kernel calls a process after the file it came from."""
    link = bench.folder / name
    if not link.exists():
        link.symlink_to(str(shutil.which(program)))
    return str(link)


def _python(bench: Bench, code: str, *, name: str = "python3", user: str = "alice") -> int:
    """A process that runs this and then waits; answers when it waits."""
    ready = bench.folder / f"ready-{time.monotonic_ns()}"
    ready.touch()
    ready.chmod(0o666)
    program = PYTHON if name == "python3" else _named(bench, name, PYTHON)
    tail = f"\nopen({str(ready)!r}, 'w').write('x')\nimport time\ntime.sleep(300)\n"
    pid = bench.start([program, "-S", "-c", code + tail], user=user)
    eventually(ready.read_text, bool)
    return pid


@pytest.mark.spec("LOG-2")
def test_a_closed_file_in_a_closed_folder_and_notices_of_it(bench: Bench) -> None:
    folder = bench.folder / "private"
    folder.mkdir(mode=0o700)
    out = bench.file("private/out", text="one\n")
    subprocess.run(["chown", "alice:", str(folder)], check=True)
    pid = bench.start(SLEEP, stdout=out)
    with bench.open(pid) as opened:
        (file,) = opened.files
        assert content(file) == b"one\n"
        assert file.path == str(out)
        assert [(each.pid, each.descriptor) for each in file.holders] == [(pid, 1)]
        assert (file.size, file.comm) == (4, "sleep")
        assert file.flags & os.O_APPEND
        assert file.born is not None
        assert abs(file.born - out.stat().st_mtime) < 60
        assert [each.why for each in opened.skipped] == ["it is a terminal or another device"]
        with out.open("a") as more:
            more.write("two\n")
        assert opened.watch_fd is not None
        assert select.select([opened.watch_fd], [], [], 5)[0]
        assert os.read(opened.watch_fd, 16)[:4] == file.watch.to_bytes(4, "little")
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.write(file.fd, b"x")


@pytest.mark.spec("LOG-2")
def test_each_file_once_with_all_who_hold_it(bench: Bench) -> None:
    out = bench.file("shared")
    code = f"import os; f=os.open({str(out)!r}, 1); os.dup2(f, 1); os.dup2(f, 2)"
    pids = [_python(bench, code), _python(bench, code)]
    with bench.open(*pids, pids[0]) as opened:
        (file,) = opened.files
        holders = [(each.pid, each.descriptor) for each in file.holders]
        assert holders == [(pids[0], 1), (pids[0], 2), (pids[1], 1), (pids[1], 2)]


@pytest.mark.spec("LOG-2")
@pytest.mark.threat("named-srun")
@pytest.mark.parametrize("name", ["srun", "slurmstepd"])
def test_of_slurm_s_own_writers_every_descriptor_that_writes(bench: Bench, name: str) -> None:
    files = [bench.file(f"{name}-{number}") for number in range(3)]
    opens = "".join(f"os.open({str(file)!r}, 1);" for file in files[:2])
    read_only = f"os.open({str(files[2])!r}, 0)"
    pid = _python(bench, f"import os;{opens}{read_only}", name=name)
    other = _python(bench, f"import os;{opens}{read_only}")
    with bench.open(pid) as opened, bench.open(other) as plain:
        assert {each.path for each in opened.files} == {str(each) for each in files[:2]}
        assert {each.comm for each in opened.files} == {name}
        assert plain.files == ()


@pytest.mark.spec("LOG-2")
@pytest.mark.threat("held-descriptor")
def test_what_root_holds_is_opened_by_the_owner_s_rights(bench: Bench) -> None:
    own = bench.file("own", text="own\n")
    closed = bench.file("closed", owner="root", mode=0o600)
    public = bench.file("public", owner="root", mode=0o644)
    bobs = bench.file("bobs", owner="bob", mode=0o622)
    files = (own, closed, public, bobs)
    code = "import os;" + "".join(f"os.open({str(file)!r}, 1);" for file in files)
    pid = _python(bench, code, name="slurmstepd", user="root")
    with bench.open(pid) as opened:
        assert [content(each) for each in opened.files] == [b"own\n"]
        assert [each.why for each in opened.skipped if each.holder.descriptor > 2] == [
            "alice can't read it: permission denied"  # of bob's, which she may write to
        ]


@pytest.mark.spec("LOG-2")
@pytest.mark.threat("held-descriptor")
@pytest.mark.parametrize("mode", [0o600, 0o620, 0o622])
@pytest.mark.parametrize("holder", ["root", "bob", "alice"])
def test_what_the_owner_may_not_read_is_refused_whoever_holds_it(
    bench: Bench, mode: int, holder: str
) -> None:
    file = bench.file("notmine", owner="bob", mode=mode)
    descriptor = os.open(file, os.O_WRONLY)
    try:
        pid = bench.start(SLEEP, user=holder, stdout=descriptor)
    finally:
        os.close(descriptor)
    with bench.open(pid) as opened:
        assert opened.files == ()
    with pytest.raises(DataUnavailable):
        bench.open_file(file)


@pytest.mark.spec("LOG-2")
@pytest.mark.threat("setuid-memory")
def test_the_memory_of_a_setuid_program_is_not_opened(bench: Bench) -> None:
    """The helper may find it with `CAP_SYS_PTRACE`, and its owner may not read it."""
    program, link = bench.folder / "setuid", bench.folder / "to-memory"
    shutil.copy(str(shutil.which("sleep")), program)
    program.chmod(0o4755)
    out = bench.file("of-setuid", text="before\n")
    pid = bench.start([str(program), "300"], stdout=out)
    eventually(lambda: Path(f"/proc/{pid}/stat").stat().st_uid == 0)
    link.symlink_to(f"/proc/{pid}/mem")
    for path in (link, Path(f"/proc/{pid}/mem"), Path(f"/proc/{pid}/exe")):
        with pytest.raises(DataUnavailable):
            bench.open_file(path)
    with bench.open(pid) as opened:
        assert [content(each) for each in opened.files] == [b"before\n"]


@pytest.mark.spec("LOG-2")
def test_a_process_that_hides_itself(bench: Bench) -> None:
    out = bench.file("hidden", text="hidden\n")
    code = f"import os,ctypes; os.dup2(os.open({str(out)!r}, 1), 1); ctypes.CDLL(None).prctl(4, 0)"
    with bench.open(_python(bench, code)) as opened:
        assert [content(each) for each in opened.files] == [b"hidden\n"]


@pytest.mark.spec("LOG-2")
def test_a_file_that_only_the_job_sees(bench: Bench) -> None:
    place = bench.folder / "private-mount"
    place.mkdir()
    script = f"mount -t tmpfs none {place}; echo inside >{place}/out; exec sleep 300 >>{place}/out"
    pid = bench.start(["unshare", "-Urm", "sh", "-c", script], becomes="sleep")
    assert not (place / "out").exists()
    with bench.open(pid) as opened:
        assert [content(each) for each in opened.files] == [b"inside\n"]
    with pytest.raises(DataUnavailable):
        bench.open_file(place / "out")


@pytest.mark.spec("LOG-2", "LOG-3")
def test_a_file_that_was_deleted_is_still_read(bench: Bench) -> None:
    out = bench.file("gone", text="still\n")
    pid = bench.start(SLEEP, stdout=out)
    out.unlink()
    with bench.open(pid) as opened:
        assert [content(each) for each in opened.files] == [b"still\n"]
        assert opened.files[0].path == f"{out} (deleted)"


NO_FILES = pytest.mark.parametrize(
    ("code", "why"),
    [
        ("f=os.open('/dev/zero', 2)", "device"),
        ("f=os.open('/proc/self/mem', 2)", "makes it up"),
        ("f=os.open('/proc/self/oom_score_adj', 2)", "makes it up"),
        ("f=os.open(FIFO, 2)", "a pipe"),
        ("f=os.pipe()[1]", "a pipe"),
        ("import socket; s=socket.socket(); f=s.fileno()", "a socket"),
        ("f=os.memfd_create('x')", "file system"),
        ("f=os.open('/dev/ptmx', 2)", "device"),
    ],
)


def _open_what_is_no_file(bench: Bench, code: str, why: str) -> float:
    fifo = bench.folder / "fifo"
    if not fifo.exists():
        os.mkfifo(fifo, 0o666)
        fifo.chmod(0o666)
    pid = _python(bench, f"import os; FIFO={str(fifo)!r}; {code}; os.dup2(f, 1)")
    began = time.monotonic()
    with bench.open(pid) as opened:
        assert opened.files == ()
        said = {each.holder.descriptor: each.why for each in opened.skipped}
        assert why in said[1]
    return time.monotonic() - began


@pytest.mark.spec("LOG-2")
@pytest.mark.threat("odd-output")
@NO_FILES
def test_what_is_no_file_is_named_and_not_opened(bench: Bench, code: str, why: str) -> None:
    _open_what_is_no_file(bench, code, why)


@pytest.mark.timing
@pytest.mark.spec("LOG-2")
@NO_FILES
def test_what_is_no_file_is_named_within_five_seconds(bench: Bench, code: str, why: str) -> None:
    assert _open_what_is_no_file(bench, code, why) < 5


@pytest.mark.spec("LOG-2")
@pytest.mark.threat("odd-output")
@pytest.mark.parametrize("path", ["/dev/zero", "/proc/self/mem", "/proc/self/environ", "/var/lib"])
def test_paths_that_are_no_files(bench: Bench, path: str) -> None:
    with pytest.raises(DataUnavailable):
        bench.open_file(path)
    fifo = bench.folder / "fifo2"
    if not fifo.exists():
        os.mkfifo(fifo, 0o666)
    link = bench.folder / "to-fifo"
    if not link.is_symlink():
        link.symlink_to(fifo)
    with pytest.raises(DataUnavailable, match="pipe"):
        bench.open_file(link)


@pytest.mark.spec("LOG-2")
@pytest.mark.threat("output-link", "late-content")
def test_a_path_through_links_is_the_owner_s_affair(bench: Bench) -> None:
    bench.file("target", text="mine\n")
    bench.file("bobs-target", owner="bob")
    for name, target in (("good", "target"), ("bad", "bobs-target"), ("shadow", "/etc/shadow")):
        (bench.folder / f"link-{name}").symlink_to(target)
    with bench.open_file(bench.folder / "link-good") as opened:
        assert [content(each) for each in opened.files] == [b"mine\n"]
        assert (opened.files[0].holders, opened.watch_fd is None) == ((), False)
    for name in ("bad", "shadow", "none"):
        with pytest.raises(DataUnavailable):
            bench.open_file(bench.folder / f"link-{name}")


@pytest.mark.spec("LOG-2")
@pytest.mark.threat("output-link")
def test_a_hard_link_to_another_s_file(bench: Bench) -> None:
    file = bench.file("bobs-own", owner="bob")
    os.link(file, bench.folder / "hard")
    with pytest.raises(DataUnavailable):
        bench.open_file(bench.folder / "hard")


@pytest.mark.spec("LOG-2")
def test_only_processes_of_the_job(bench: Bench) -> None:
    out = bench.file("mine")
    of_job = bench.start(SLEEP, stdout=out)
    of_other_job = bench.start(SLEEP, stdout=out, job=JOB + 1)
    of_none = bench.start(SLEEP, stdout=out, job=None)
    for pids in ((of_other_job,), (of_none,), (1,), (os.getpid(),), (4_000_000,)):
        with bench.open(*pids) as opened:
            assert (opened.files, opened.skipped) == ((), ())
    with bench.open(of_job, user="bob") as opened:
        assert opened.files == ()
    with bench.open(of_job, of_other_job) as opened:
        assert [each.pid for each in opened.files[0].holders] == [of_job]


@pytest.mark.spec("LOG-2")
@pytest.mark.threat("named-cgroup")
def test_a_group_that_a_user_named_like_a_job_is_none(bench: Bench) -> None:
    out = bench.file("nested")
    pid = bench.start(SLEEP, stdout=out)
    group = next(each for each in bench._groups if each.name == f"job_{JOB}")
    below = group / f"job_{JOB + 7}"
    below.mkdir()
    (below / "cgroup.procs").write_text(str(pid))
    with bench.open(pid, job=JOB + 7) as opened:
        assert opened.files == ()
    with bench.open(pid) as opened:
        assert len(opened.files) == 1
    (group / "cgroup.procs").write_text(str(pid))
    below.rmdir()


@pytest.mark.spec("AUTH-9", "LOG-2")
def test_nobody_acts_for_root(bench: Bench) -> None:
    pid = bench.start(SLEEP, user="root", stdout=bench.file("roots", owner="root"))
    for user in ("root", "nobody-here", "", "a\0b"):
        with pytest.raises(PermissionRefused):
            bench.open(pid, user=user)
        with pytest.raises(PermissionRefused):
            bench.open_file("/etc/shadow", user=user)


@pytest.mark.threat("many-files")
def test_more_files_than_an_answer_holds(bench: Bench) -> None:
    folder = bench.folder / "many"
    folder.mkdir()
    folder.chmod(0o777)
    code = "import os\nfor n in range({0}): os.open('{1}/{0}-%d' % n, 0o101)"
    with bench.open(_python(bench, code.format(64, folder), name="srun")) as opened:
        assert len(opened.files) == 64
    with pytest.raises(UsageError, match="64 files"):
        bench.open(_python(bench, code.format(65, folder), name="srun"))
    copies = "f=os.open('/dev/null',1)\nfor n in range(4200): os.dup(f)"
    limit = "import os,resource as r\nr.setrlimit(r.RLIMIT_NOFILE,(5000,5000))\n"
    pid = _python(bench, limit + copies, name="srun", user="root")
    with pytest.raises(UsageError, match="descriptors"):
        bench.open(pid)


@pytest.mark.threat("many-files")
def test_long_and_hostile_names_fit_into_one_answer(bench: Bench) -> None:
    folder = bench.folder / "deep"
    folder.mkdir()
    folder.chmod(0o777)
    code = (
        f"import os\nos.chdir({str(folder)!r})\n"
        "for n in range(20):\n os.mkdir(b'\\x1b\\xff\\n' * 80)\n os.chdir(b'\\x1b\\xff\\n' * 80)\n"
        " for m in range(3): os.open(str(m), 0o101)\n"
    )
    with bench.open(_python(bench, code, name="srun")) as opened:
        assert len(opened.files) == 60
        assert all(each.path.isprintable() for each in opened.files)
    shutil.rmtree(folder)


@pytest.mark.spec("LOG-2")
@pytest.mark.threat("output-link")
@pytest.mark.timeout(400)
def test_a_link_that_is_swapped_all_the_time(bench: Bench) -> None:
    """Attack 14: between the look and the opening the name comes to mean another file."""
    mine = bench.file("swap-mine", text="mine\n")
    bobs = bench.file("swap-bobs", owner="bob")
    link = bench.folder / "swapped"
    link.symlink_to(mine)
    targets = (mine, bobs, "/etc/shadow", "/dev/zero", "/proc/self/mem")
    swapper = subprocess.Popen([sys.executable, "-I", "-c", _SWAP, str(link), *map(str, targets)])
    good = bad = 0
    try:
        for _ in range(SWAPS):
            try:
                with bench.open_file(link) as opened:
                    assert [content(each) for each in opened.files] == [b"mine\n"]
                good += 1
            except DataUnavailable:
                bad += 1
    finally:
        swapper.kill()
        swapper.wait()
    assert good > SWAPS // 100
    assert bad > SWAPS // 100


@pytest.mark.spec("LOG-2")
@pytest.mark.threat("output-link")
def test_a_descriptor_that_is_exchanged_all_the_time(bench: Bench) -> None:
    mine = bench.file("exchange", text="mine\n")
    code = f"""
import os, threading
mine = os.open({str(mine)!r}, 1)
others = [os.open('/etc/passwd', 0), os.pipe()[1], os.open('/dev/zero', 2),
          os.open('/proc/self/mem', 2)]
def go():
    n = 0
    while True:
        n += 1
        os.dup2(others[n % 4] if n % 2 else mine, 1)
threading.Thread(target=go, daemon=True).start()
"""
    pid = _python(bench, code)
    found = 0
    for _ in range(100):
        with bench.open(pid) as opened:
            found += len(opened.files)
            assert all(content(each) == b"mine\n" for each in opened.files)
    assert found


@pytest.mark.spec("LOG-2")
@pytest.mark.threat("dead-pid")
def test_a_pid_that_is_another_s_now_shows_nothing(bench: Bench) -> None:
    out = bench.file("reused")
    for _ in range(20):
        pid = bench.start(SLEEP, stdout=out)
        with pinned(Path("/proc"), pid, JOB) as process:
            assert process is not None
            assert process.unchanged()
            old = bench._started.pop()
            old.kill()
            old.wait()
            Path("/proc/sys/kernel/ns_last_pid").write_text(str(pid - 1))
            again = bench.start(SLEEP, stdout=out, user="bob")
            assert not process.unchanged()
            assert text_of(process.folder, "stat") == ""
            if again == pid:
                return
    pytest.skip("this machine is too busy for a pid to be used twice at will")


@pytest.mark.spec("LOG-2")
@pytest.mark.threat("dead-pid")
def test_processes_that_come_and_go_while_they_are_asked_for(bench: Bench) -> None:
    """Attack 18: pids of a job that are, by the time of the look, of bob or of nobody."""
    names = {user: bench.file(f"turns-{user}", owner=user, text=user) for user in ("alice", "bob")}
    assert len(names) == 2
    base = int(Path("/proc/sys/kernel/ns_last_pid").read_text()) + 500
    words = ("turns", bench._group(JOB), str(base), str(bench.folder / "turns"))
    turns = subprocess.Popen(["sh", "-c", _TURNS, *words], stderr=subprocess.DEVNULL)
    seen, owner = 0, pwd.getpwnam("alice").pw_uid
    try:
        for turn in itertools.count():
            # Others may take the numbers first: until one was met, it goes on.
            if turn >= 300 and (seen or turn >= 6000):
                break
            with bench.open(*range(base, base + 20)) as opened:
                found = [(each.path, content(each)) for each in opened.files]
                # Numbers come round: one of them may be an older process of the same job.
                texts = {text for path, text in found if path.startswith(f"{bench.folder}/turns")}
                assert texts <= {b"alice"}, found
                seen += len(texts)
                assert all(os.fstat(each.fd).st_uid == owner for each in opened.files), found
    finally:
        turns.kill()
        turns.wait()
    assert seen


def _open_a_file_system_that_the_job_runs(bench: Bench) -> float:
    place = bench.file("served", mode=0o666)
    script = Path(__file__).parent / "silent_files.py"
    argv = ["unshare", "-Urm", PYTHON, "-I", str(script), str(place), "file"]
    pid = bench.start(argv, becomes="python3")
    children = Path(f"/proc/{pid}/task/{pid}/children")
    child = int(eventually(children.read_text, bool).split()[0])
    eventually(Path(f"/proc/{child}/comm").read_text, lambda said: said == "sleep\n")
    began = time.monotonic()
    try:
        with bench.open(child) as opened:
            assert opened.files == ()
            # Whoever is not in the namespace that mounted it is not even told what it is.
            said = {each.holder.descriptor: each.why for each in opened.skipped}
            assert said[1] == "it can't be looked at: permission denied"
        return time.monotonic() - began
    finally:
        os.kill(child, signal.SIGKILL)


@pytest.mark.spec("LOG-2")
@pytest.mark.threat("own-file-system")
def test_a_file_system_that_the_job_runs_itself_is_not_looked_at(bench: Bench) -> None:
    _open_a_file_system_that_the_job_runs(bench)


@pytest.mark.timing
@pytest.mark.spec("LOG-2")
def test_a_file_system_that_the_job_runs_itself_is_passed_over_within_five_seconds(
    bench: Bench,
) -> None:
    assert _open_a_file_system_that_the_job_runs(bench) < 5


@pytest.fixture
def silent(bench: Bench, request: pytest.FixtureRequest) -> Iterator[Path]:
    folder = bench.folder / f"silent-{request.param}"
    folder.mkdir()
    script = Path(__file__).parent / "silent_files.py"
    server = subprocess.Popen(
        [sys.executable, "-I", str(script), str(folder), request.param], stdout=subprocess.PIPE
    )
    assert server.stdout is not None
    assert server.stdout.readline() == b"mounted\n"
    yield folder
    server.kill()
    server.wait()
    server.stdout.close()
    subprocess.run(["umount", "-l", str(folder)], check=True)
    folder.rmdir()


def _read_beside_a_share_that_never_answers(bench: Bench, silent: Path) -> tuple[float, float]:
    """The seconds until the share was given up, and the longest of reading beside it."""
    out = bench.file("beside", text="beside\n")
    pid = bench.start(SLEEP, stdout=out)
    began = time.monotonic()
    with pytest.raises(Unavailable, match="lattice-helper"):
        bench.open_file(silent / "out")
    given_up_s = time.monotonic() - began
    beside_s = []
    for _ in range(3):
        began = time.monotonic()
        with bench.open(pid) as opened:
            assert len(opened.files) == 1
        beside_s.append(time.monotonic() - began)
    return given_up_s, max(beside_s)


@pytest.mark.spec("LOG-2")
@pytest.mark.threat("own-file-system")
@pytest.mark.parametrize("silent", ["deaf", "half"], indirect=True)
def test_a_share_that_never_answers_holds_up_nobody_else(bench: Bench, silent: Path) -> None:
    _read_beside_a_share_that_never_answers(bench, silent)


@pytest.mark.timing
@pytest.mark.spec("LOG-2")
@pytest.mark.parametrize("silent", ["deaf", "half"], indirect=True)
def test_a_share_that_never_answers_is_given_up_within_50_s_and_others_wait_for_five_at_most(
    bench: Bench, silent: Path
) -> None:
    # The helper can't end what hangs in the kernel. The agent's own limit, 45 s, gives it up.
    bench.port = HelperOutputs(HelperChannel(bench.socket))
    given_up_s, beside_s = _read_beside_a_share_that_never_answers(bench, silent)
    assert given_up_s < 50
    assert beside_s < 5


@pytest.mark.spec("AUTH-9")
@pytest.mark.threat("helper", "counting-child")
def test_what_the_helper_keeps_of_root(bench: Bench) -> None:
    lines = Path(f"/proc/{bench.helper.pid}/status").read_text().splitlines()
    told = dict(line.split(":\t") for line in lines if line.startswith("Cap"))
    # To be someone else, to name descriptors; to enter a job, and to hang up on what runs there.
    kept = (1 << 6) | (1 << 7) | (1 << 19) | (1 << 18) | (1 << 21) | (1 << 5)
    assert int(told["CapEff"], 16) == int(told["CapPrm"], 16) == kept
    assert int(told["CapBnd"], 16) == int(told["CapInh"], 16) == int(told["CapAmb"], 16) == 0
