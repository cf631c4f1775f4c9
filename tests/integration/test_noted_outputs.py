"""Noted output files, opened when their writers are gone: by the owner's rights of now, and alone.

Real processes and the real kernel; attacks on a note between its writing and its use.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lattice.base.errors import DataUnavailable, PermissionRefused, Unavailable
from tests.contract.identities import being
from tests.eventually import eventually
from tests.integration.output_bench import JOB, Bench, content

pytestmark = pytest.mark.lab

SLEEP = ("sleep", "300")


@pytest.fixture
def bench() -> Iterator[Bench]:
    if os.geteuid() != 0:
        pytest.skip("the helper is started as root")
    folder = Path(tempfile.mkdtemp(prefix="lattice-outputs-", dir="/var/lib"))
    made = Bench(folder)
    try:
        yield made
    finally:
        made.close()
        shutil.rmtree(folder)


def noted(bench: Bench, out: Path, *, user: str = "alice", job: int = JOB) -> None:
    """Written to by a process of that job, noted, and the process gone."""
    descriptor = os.open(out, os.O_WRONLY)
    try:
        pid = bench.start(SLEEP, user=user, stdout=descriptor, job=job)
    finally:
        os.close(descriptor)
    assert bench.note(pid, job=job) == 1
    bench.end(pid)


def test_notes_are_root_s_alone(bench: Bench) -> None:
    # Whole ticks of the kernel, counted from a boot that is known to a second.
    before_ms = (time.time() - 60) * 1000
    noted(bench, bench.file("out"))
    after_ms = (time.time() + 60) * 1000
    folder = bench.folder / "notes"
    files = list(folder.rglob("*"))
    assert len(files) == 2
    for each in (folder, *files):
        found = each.stat()
        assert (found.st_uid, found.st_mode & 0o077) == (0, 0)
    told = json.loads(next(each for each in files if each.suffix == ".json").read_text())
    assert told["path"] == str(bench.folder / "out")
    order = [before_ms, told["holders"][0]["began_ms"], after_ms]
    assert order == sorted(order)


def test_noting_is_written_to_the_helper_s_log(bench: Bench) -> None:
    noted(bench, bench.file("out"))
    lines = [json.loads(line) for line in bench.log.read_text().splitlines()]
    (act,) = [each for each in lines if each["event"] == "act"]
    assert (act["verb"], act["job"], act["user"], act["grant"], act["outcome"]) == (
        "note_output", str(JOB), "", "", "done",
    )  # fmt: skip


@pytest.mark.spec("LOG-2", "LOG-3")
def test_a_file_in_a_closed_home_with_watch_and_rank(bench: Bench) -> None:
    folder = bench.folder / "private"
    folder.mkdir(mode=0o700)
    out = bench.file("private/out", text="one\n")
    subprocess.run(["chown", "alice:", str(folder)], check=True)
    pid = bench.start(["env", "SLURM_PROCID=3", *SLEEP], stdout=out, becomes="sleep")
    assert bench.note(pid) == 1
    bench.end(pid)
    with bench.open_noted() as opened:
        (file,) = opened.files
        assert content(file) == b"one\n"
        assert opened.watch_fd is not None
        assert [(each.rank, each.daemon) for each in file.holders] == [(3, False)]
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.write(file.fd, b"x")


@pytest.mark.spec("LOG-2")
@pytest.mark.threat("late-content")
def test_what_the_owner_may_not_read_is_not_opened_whoever_held_it(bench: Bench) -> None:
    noted(bench, bench.file("bobs", owner="bob", mode=0o622), user="alice")
    noted(bench, bench.file("roots", owner="root", mode=0o644), user="root")
    with bench.open_noted() as opened:
        assert opened.files == ()
        assert {each.why for each in opened.skipped} == {
            "alice can't read it: permission denied",
            "alice may not write to it",
        }


@pytest.mark.spec("LOG-2")
def test_a_note_of_another_s_process_is_not_for_the_owner(bench: Bench) -> None:
    """Both may read the file; but it was no process of alice's or of Slurm's that wrote it."""
    noted(bench, bench.file("shared", owner="bob", mode=0o666), user="bob")
    with bench.open_noted(user="alice") as opened:
        assert (opened.files, opened.skipped) == ((), ())
    with bench.open_noted(user="bob") as opened:
        assert len(opened.files) == 1


@pytest.mark.spec("LOG-2")
@pytest.mark.threat("exchanged-file")
def test_rights_are_asked_anew(bench: Bench) -> None:
    out = bench.file("taken")
    noted(bench, out)
    subprocess.run(["chown", "bob:", str(out)], check=True)
    with bench.open_noted() as opened:
        assert opened.files == ()
    assert [each.why for each in opened.skipped] == ["alice may not write to it"]


ELSEWHERE = ["/etc/shadow", "/dev/zero", "/proc/self/mem", "bobs", "fifo"]


def _open_a_path_that_leads_elsewhere(bench: Bench, target: str) -> float:
    """Attack 14 with a note between: the file is exchanged for a link after it was noted."""
    out = bench.file("out")
    bench.file("bobs", owner="bob", mode=0o644)
    os.mkfifo(bench.folder / "fifo")
    noted(bench, out)
    out.unlink()
    out.symlink_to(target)
    began = time.monotonic()
    with bench.open_noted() as opened:
        assert opened.files == ()
        assert [each.why for each in opened.skipped] == ["there is another file now"]
    return time.monotonic() - began


@pytest.mark.spec("LOG-2")
@pytest.mark.threat("exchanged-file")
@pytest.mark.parametrize("target", ELSEWHERE)
def test_a_path_that_leads_elsewhere_by_now(bench: Bench, target: str) -> None:
    _open_a_path_that_leads_elsewhere(bench, target)


@pytest.mark.timing
@pytest.mark.spec("LOG-2")
@pytest.mark.parametrize("target", ELSEWHERE)
def test_a_path_that_leads_elsewhere_is_passed_over_within_five_seconds(
    bench: Bench, target: str
) -> None:
    assert _open_a_path_that_leads_elsewhere(bench, target) < 5


@pytest.mark.spec("LOG-3")
def test_a_link_to_the_very_file_is_fine(bench: Bench) -> None:
    out = bench.file("out", text="mine\n")
    noted(bench, out)
    out.rename(bench.folder / "moved")
    out.symlink_to("moved")
    with bench.open_noted() as opened:
        assert [content(each) for each in opened.files] == [b"mine\n"]


@pytest.mark.spec("LOG-3")
def test_a_file_that_only_the_job_saw_is_not_found_again(bench: Bench) -> None:
    place = bench.folder / "private-mount"
    place.mkdir()
    script = f"mount -t tmpfs none {place}; echo inside >{place}/out; exec sleep 300 >>{place}/out"
    pid = bench.start(["unshare", "-Urm", "sh", "-c", script], becomes="sleep")
    assert bench.note(pid) == 1
    bench.end(pid)
    with bench.open_noted() as opened:
        assert opened.files == ()
        assert ["can't reach it any more" in each.why for each in opened.skipped] == [True]


@pytest.mark.spec("LOG-2")
def test_a_file_that_was_deleted_while_it_was_noted(bench: Bench) -> None:
    out = bench.file("out")
    pid = bench.start(SLEEP, stdout=out)
    out.unlink()
    assert bench.note(pid) == 1
    bench.file("out (deleted)", text="bait\n")
    with bench.open_noted() as opened:
        assert opened.files == ()


@pytest.mark.spec("LOG-3")
def test_only_writers_that_began_in_the_attempt(bench: Bench) -> None:
    noted(bench, bench.file("out"))
    now_ms = int(time.time() * 1000)
    for since_ms, until_ms, count in (
        (now_ms - 60_000, 0, 1),
        (now_ms - 60_000, now_ms, 1),
        (now_ms + 1_000, 0, 0),
        (1, now_ms - 60_000, 0),
    ):
        with bench.open_noted(since_ms=since_ms, until_ms=until_ms) as opened:
            assert len(opened.files) == count


def test_pages(bench: Bench) -> None:
    folder = bench.folder / "many"
    folder.mkdir()
    folder.chmod(0o777)
    code = "import os,time\nfor n in range(50): os.open('{}/{}-%d' % n, 0o101)\ntime.sleep(300)"
    link = bench.folder / "srun"
    link.symlink_to("/usr/bin/python3")
    for turn in ("a", "b"):
        pid = bench.start([str(link), "-S", "-c", code.format(folder, turn)])
        eventually(functools.partial(bench.note, pid), lambda count: count >= 50)
        bench.end(pid)
    with bench.open_noted() as first, bench.open_noted(skip=64) as second:
        assert (len(first.files), first.more) == (64, True)
        assert (len(second.files), second.more) == (36, False)
        paths = {each.path for each in (*first.files, *second.files)}
    assert len(paths) == 100


@pytest.mark.spec("AUTH-9")
@pytest.mark.threat("agent")
def test_nothing_is_opened_without_a_grant_or_with_another_s(bench: Bench) -> None:
    noted(bench, bench.file("out"))

    def ask(grant: str, skip: int = 0) -> None:
        with being("lattice-agent"):
            asyncio.run(bench.port.open_noted(grant, 0, 0, skip))

    for grant in ("", "x.y.z", bench.grant_for_path("/x"), bench.grant_for_noted(skip=64)):
        with pytest.raises(Unavailable, match="does not accept"):
            ask(grant)
    for user in ("root", "nobody-here"):
        with pytest.raises(PermissionRefused):
            ask(bench.grant_for_noted(user=user))
    with pytest.raises(Unavailable):  # somebody else at the socket: not even noting
        asyncio.run(bench.port.note_output(JOB, (1,)))


@pytest.mark.spec("LOG-3")
def test_what_can_not_be_written_down_hinders_no_opening(bench: Bench) -> None:
    out = bench.file("out", text="mine\n")
    pid = bench.start(SLEEP, stdout=out)
    shutil.rmtree(bench.folder / "notes")
    (bench.folder / "notes").touch()
    with bench.open(pid) as opened:
        assert [content(each) for each in opened.files] == [b"mine\n"]
    with pytest.raises(DataUnavailable, match="can't be written down"):
        bench.note(pid)
    said = [json.loads(line).get("reason") for line in bench.log.read_text().splitlines()]
    assert said[-2:] == ["it can't be written down: not a directory"] * 2
