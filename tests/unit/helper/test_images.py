"""Images that the site has signed, and the end of what was started in a recorded terminal."""

from __future__ import annotations

import base64
import fcntl
import hashlib
import os
import pwd
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from lattice.domain.image_signature import BadImageSignature, check_signature, signed_text
from lattice.helper import images
from lattice.helper.guests import GuestProcesses
from lattice.helper.images import ImageDigests, JobImages, NotSigned, SiteImages
from lattice.helper.job_entry import Owner
from lattice.helper.mounts import Mount
from lattice.helper.privilege import Kernel
from lattice.helper.sessions import HelperSessions, NoRoom
from lattice.helper.target import ProbeTarget
from tests.eventually import eventually

KEY = Ed25519PrivateKey.from_private_bytes(b"k" * 32)
OTHER = Ed25519PrivateKey.from_private_bytes(b"o" * 32)
TEXT = b"hsqs" + bytes(100_000)
_FREEZER = Path("/sys/fs/cgroup/freezer")
_ACCOUNT = pwd.getpwnam("nobody")
OWNER = Owner(account=_ACCOUNT, groups=(_ACCOUNT.pw_gid,))
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def _public(key: Ed25519PrivateKey) -> bytes:
    return key.public_key().public_bytes_raw()


def _signature(text: bytes, key: Ed25519PrivateKey = KEY) -> bytes:
    signed = key.sign(signed_text(hashlib.sha256(text).digest()))
    return base64.b64encode(signed) + b"\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    return tmp_path


@pytest.fixture
def keys(folder: Path) -> Path:
    file = folder / "keys"
    file.write_bytes(b"# the site's\n" + base64.b64encode(_public(KEY)) + b"\n")
    file.chmod(0o644)
    return file


@pytest.fixture
def image(folder: Path) -> Iterator[int]:
    file = folder / "uenv.squashfs"
    file.write_bytes(TEXT)
    file.chmod(0o644)
    descriptor = os.open(file, os.O_RDONLY)
    yield descriptor
    os.close(descriptor)


@pytest.fixture
def site(folder: Path, keys: Path) -> SiteImages:
    return SiteImages(keys, ImageDigests(folder / "images"))


def test_an_image_that_the_site_signed_is_accepted(site: SiteImages, image: int) -> None:
    site.check(image, _signature(TEXT))
    site.check(image, _signature(TEXT))


@pytest.mark.parametrize(
    ("signature", "why"),
    [
        (b"", "no signature beside it"),
        (b"no base64!", "can't be parsed"),
        (base64.b64encode(bytes(63)), "can't be parsed"),
        (base64.b64encode(bytes(64)), "none of this site's keys"),
        (_signature(TEXT, OTHER), "none of this site's keys"),
        (_signature(TEXT + b"."), "none of this site's keys"),
    ],
    ids=["none", "text", "short", "zeros", "other-key", "other-image"],
)
def test_any_other_signature_is_refused(
    site: SiteImages, image: int, signature: bytes, why: str
) -> None:
    with pytest.raises(NotSigned, match=why):
        site.check(image, signature)


def test_an_image_that_others_can_change_is_refused(
    site: SiteImages, image: int, folder: Path
) -> None:
    (folder / "uenv.squashfs").chmod(0o664)
    with pytest.raises(NotSigned, match="others than root"):
        site.check(image, _signature(TEXT))


@as_root
def test_an_image_of_the_owner_is_refused(site: SiteImages, image: int) -> None:
    os.fchown(image, _ACCOUNT.pw_uid, -1)
    with pytest.raises(NotSigned, match="others than root"):
        site.check(image, _signature(TEXT))


def test_an_image_that_was_changed_is_read_again(
    site: SiteImages, image: int, folder: Path
) -> None:
    site.check(image, _signature(TEXT))
    with (folder / "uenv.squashfs").open("r+b") as file:
        file.seek(1000)
        file.write(b"x")
    with pytest.raises(NotSigned, match="none of this site's keys"):
        site.check(image, _signature(TEXT))


def test_a_withdrawn_key_counts_at_once(site: SiteImages, image: int, keys: Path) -> None:
    site.check(image, _signature(TEXT))
    keys.write_bytes(base64.b64encode(_public(OTHER)) + b"\n")
    with pytest.raises(NotSigned, match="none of this site's keys"):
        site.check(image, _signature(TEXT))
    keys.unlink()
    with pytest.raises(NotSigned):
        site.check(image, _signature(TEXT))


def test_keys_that_others_can_change_are_refused(keys: Path, folder: Path) -> None:
    keys.chmod(0o666)
    with pytest.raises(ValueError, match="others than root"):
        SiteImages(keys, ImageDigests(folder / "images"))


def test_an_image_beyond_the_limit_is_refused(folder: Path, image: int) -> None:
    with pytest.raises(NotSigned, match="larger than"):
        ImageDigests(folder / "images", largest_bytes=1000).of(image)


def test_a_large_image_is_checked_by_a_child_and_accepted_later(folder: Path, image: int) -> None:
    digests = ImageDigests(folder / "images", patience_s=-1)
    with pytest.raises(NotSigned, match="try again in a minute"):
        digests.of(image)

    def known() -> bytes | None:
        try:
            return digests.of(image)
        except NotSigned:
            return None

    assert eventually(known) == hashlib.sha256(TEXT).digest()


def test_no_signature_fits_without_keys() -> None:
    digest = hashlib.sha256(TEXT).digest()
    check_signature(_signature(TEXT), digest, [_public(OTHER), _public(KEY)])
    with pytest.raises(BadImageSignature):
        check_signature(_signature(TEXT), digest, [])


# Images of a job


@pytest.fixture
def mounted(folder: Path) -> Iterator[Callable[[Path], tuple[subprocess.Popen[bytes], int]]]:
    """A process that runs in an image, in mounts of its own."""
    begun: list[tuple[subprocess.Popen[bytes], int]] = []

    def mount(image: Path) -> tuple[subprocess.Popen[bytes], int]:
        place = folder / "user-environment"
        place.mkdir(exist_ok=True)
        process = subprocess.Popen(
            [
                *("unshare", "--mount", "--propagation", "private", "/bin/sh", "-c"),
                'mount -t squashfs -o loop,ro "$1" "$2" && exec sleep 600',
                *("sh", str(image), str(place)),
            ]
        )
        comm = Path(f"/proc/{process.pid}/comm")
        eventually(lambda: process.poll() is not None or comm.read_text() == "sleep\n")
        if process.poll() is not None:
            pytest.skip("this machine mounts no images")
        opened = os.open(f"/proc/{process.pid}", os.O_RDONLY | os.O_DIRECTORY)
        begun.append((process, opened))
        return begun[-1]

    yield mount
    for process, opened in begun:
        os.close(opened)
        process.kill()
        process.wait()


def _target(folder: int) -> ProbeTarget:
    """What was opened of a process, as long as it was in its mounts of now."""
    proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)
    mounts = os.open("ns/mnt", os.O_RDONLY, dir_fd=folder)
    process = SimpleNamespace(folder=folder)
    return cast("ProbeTarget", SimpleNamespace(process=process, proc=proc, namespaces=(mounts,)))


@pytest.fixture
def uenv(folder: Path) -> Path:
    if os.geteuid() != 0 or shutil.which("mksquashfs") is None:
        pytest.skip("needs root and mksquashfs")
    content = folder / "content"
    content.mkdir()
    (content / "tool").write_text("x" * 1000)
    image = folder / "uenv.img"
    subprocess.run(["mksquashfs", str(content), str(image), "-noappend", "-quiet"], check=True)
    image.chmod(0o644)
    for each in (folder, *folder.parents):
        if each.stat().st_uid == 0 and each.name.startswith(("pytest", "popen", "test")):
            each.chmod(0o755)
    return image


def test_a_job_is_entered_where_it_runs_in_a_signed_image(
    folder: Path, site: SiteImages, uenv: Path, mounted: Callable[[Path], tuple[object, int]]
) -> None:
    _, process = mounted(uenv)
    job, target = JobImages(Kernel(), site), _target(process)
    with pytest.raises(NotSigned, match="no signature beside it"):
        job.require(target, OWNER)
    (folder / "uenv.img.sig").write_bytes(_signature(uenv.read_bytes(), OTHER))
    with pytest.raises(NotSigned, match=r"user-environment .*none of this site's keys"):
        job.require(target, OWNER)
    (folder / "uenv.img.sig").write_bytes(_signature(uenv.read_bytes()))
    job.require(target, OWNER)


@pytest.mark.threat("recording-bypass")
def test_mounts_that_the_terminal_would_not_see_prove_nothing(
    folder: Path, site: SiteImages, uenv: Path, mounted: Callable[[Path], tuple[object, int]]
) -> None:
    """The process had other mounts when its namespaces were opened."""
    (folder / "uenv.img.sig").write_bytes(_signature(uenv.read_bytes()))
    _, process = mounted(uenv)
    other = os.open("/proc/self/ns/ipc", os.O_RDONLY)
    target = _target(process)
    target.namespaces = (other,)  # type: ignore[misc]
    with pytest.raises(NotSigned, match="its mounts are others meanwhile"):
        JobImages(Kernel(), site).require(target, OWNER)
    os.close(other)


@as_root
@pytest.mark.threat("recording-bypass")
def test_a_process_that_leaves_for_a_user_namespace_while_it_is_checked_is_refused(
    folder: Path,
    site: SiteImages,
    uenv: Path,
    mounted: Callable[[Path], tuple[subprocess.Popen[bytes], int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (folder / "uenv.img.sig").write_bytes(_signature(uenv.read_bytes()))
    _, process = mounted(uenv)
    target, read = _target(process), images._images
    leaves = subprocess.Popen(["unshare", "--user", "sleep", "600"])
    there = Path(f"/proc/{leaves.pid}/ns/user")
    eventually(
        lambda: leaves.poll() is not None or there.stat() != Path("/proc/self/ns/user").stat()
    )
    gone = os.open(f"/proc/{leaves.pid}", os.O_RDONLY | os.O_DIRECTORY)

    def leaves_meanwhile(found: int, name: str) -> list[Mount]:
        mounts = read(found, name)
        target.process.folder = gone  # type: ignore[misc]
        return mounts

    monkeypatch.setattr(images, "_images", leaves_meanwhile)
    try:
        with pytest.raises(NotSigned, match="user namespace of its own"):
            JobImages(Kernel(), site).require(target, OWNER)
    finally:
        os.close(gone)
        leaves.kill()
        leaves.wait()


def test_another_file_under_the_name_of_a_mounted_image_is_refused(
    folder: Path, site: SiteImages, uenv: Path, mounted: Callable[[Path], tuple[object, int]]
) -> None:
    """A signed image at the path proves nothing of the one that is mounted."""
    signed = uenv.read_bytes()
    _, process = mounted(uenv)
    uenv.rename(folder / "mounted.img")
    uenv.write_bytes(signed)
    (folder / "uenv.img.sig").write_bytes(_signature(signed))
    job = JobImages(Kernel(), site)
    # The kernel names the mounted file by its new path, which has no signature.
    with pytest.raises(NotSigned, match="no signature beside it"):
        job.require(_target(process), OWNER)
    (folder / "mounted.img").unlink()
    with pytest.raises(NotSigned, match="can't open"):
        job.require(_target(process), OWNER)


def test_a_job_without_an_image_is_refused(site: SiteImages) -> None:
    me = os.open("/proc/self", os.O_RDONLY | os.O_DIRECTORY)
    mounts = Path("/proc/self/mountinfo").read_text()
    if " squashfs " in mounts:
        pytest.skip("this machine runs in an image")
    with pytest.raises(NotSigned, match="no uenv"):
        JobImages(Kernel(), site).require(_target(me), OWNER)
    os.close(me)


# What was started in a terminal


@pytest.mark.skipif(
    os.geteuid() != 0 or not os.access(_FREEZER, os.W_OK),
    reason="needs root and the freezer's control groups",
)
@pytest.mark.threat("terminal-holder")
def test_what_left_its_terminal_is_ended_and_what_was_there_before_stays() -> None:
    group = _FREEZER / f"guests{os.getpid()}"
    group.mkdir()
    procs = group / "cgroup.procs"
    begun: list[subprocess.Popen[bytes]] = []

    def run(user: str, script: str) -> None:
        join = 'echo $$ >"$1"; exec setpriv --reuid="$2" --clear-groups --regid=nogroup sh -c "$3"'
        command = ["setsid", "sh", "-c", join, "sh", str(procs), user, script]
        begun.append(subprocess.Popen(command))

    try:
        run("nobody", "exec sleep 600")
        eventually(lambda: len(procs.read_text().split()) == 1)
        guests = GuestProcesses(str(group), _ACCOUNT.pw_uid)
        run("root", "exec sleep 600")
        forks = "trap '' HUP TERM; while :; do sh -c 'sleep 5' & sleep 0.01; done"
        run("nobody", f'nohup sh -c "{forks}" >/dev/null 2>&1 & exec sleep 1')
        eventually(lambda: len(procs.read_text().split()) > 6)
        assert guests.end()
        left = {int(pid) for pid in procs.read_text().split()}
        assert {begun[0].pid, begun[1].pid} <= left
        states = [
            Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
            for pid in left - {begun[0].pid, begun[1].pid}
        ]
        assert set(states) <= {"Z"}
    finally:
        for pid in procs.read_text().split():
            os.kill(int(pid), signal.SIGKILL)
        for each in begun:
            each.wait()
        eventually(lambda: not procs.read_text().split())
        group.rmdir()


@pytest.mark.threat("terminal-holder")
def test_a_number_that_is_used_again_hides_no_process(folder: Path) -> None:
    """Whoever ends a process of before can wait until one of the terminal has its number."""
    group, process = folder / "group", subprocess.Popen(["sleep", "600"], start_new_session=True)
    group.mkdir()
    (group / "cgroup.procs").write_text(f"{process.pid}\n")
    guests = GuestProcesses(str(group), os.getuid())
    assert guests._left() == []
    proc = folder / "proc" / str(process.pid)
    proc.mkdir(parents=True)
    for name in ("status", "stat"):
        (proc / name).write_text(Path(f"/proc/{process.pid}/{name}").read_text())
    before, closing, after = (proc / "stat").read_text().rpartition(")")
    fields = after.split()
    fields[19] = str(int(fields[19]) + 1)
    (proc / "stat").write_text(f"{before}{closing} {' '.join(fields)}\n")
    guests._proc = folder / "proc"
    assert guests._left() == [process.pid]
    process.kill()
    process.wait()


def test_a_job_has_one_recorded_terminal_at_a_time(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lattice.helper.sessions._ALONE_S", 0.1)
    sessions = HelperSessions(folder / "sessions")
    first = sessions.claim_alone(42)
    os.close(sessions.claim_alone(43))
    with pytest.raises(NoRoom, match="has not ended yet"):
        sessions.claim_alone(42)
    os.close(first)
    os.close(sessions.claim_alone(42))


def test_locks_of_ended_terminals_do_not_gather(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lattice.helper.sessions._ALONE_S", 0.1)
    monkeypatch.setattr("lattice.helper.sessions._MOST_ALONE", 4)
    sessions = HelperSessions(folder / "sessions")
    first = sessions.claim_alone(1)
    for job in range(2, 30):
        os.close(sessions.claim_alone(job))
    assert len(list((folder / "sessions" / "recorded").iterdir())) <= 4
    with pytest.raises(NoRoom):
        sessions.claim_alone(1)
    os.close(first)


def test_the_lock_of_a_removed_file_is_none(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file may be removed between its opening and its lock."""
    sessions, path = HelperSessions(folder / "sessions"), folder / "sessions" / "recorded" / "42"
    flock, removed = fcntl.flock, list[Path]()

    def removed_before(lock: int, how: int) -> None:
        if not removed:
            removed.append(path)
            path.unlink()
        flock(lock, how)

    monkeypatch.setattr(fcntl, "flock", removed_before)
    lock = sessions.claim_alone(42)
    assert removed
    assert os.fstat(lock).st_ino == path.stat().st_ino
    os.close(lock)
