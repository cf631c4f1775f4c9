"""Checks that images are signed by the site: those that a job runs in, and those of tools.

An image is checked by a descriptor of the very file that is mounted. Only root may be able to
change it, or its owner could do that after the check. The digest of a large image takes long. Then
a child goes on alone, and the next request finds the digest in a folder of root's.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import stat
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, Protocol

from lattice.domain.image_signature import LARGEST_BYTES, SUFFIX, BadImageSignature, check_signature
from lattice.helper.job_entry import Owner
from lattice.helper.judge import read_keys
from lattice.helper.kernel_texts import bytes_of, text_of
from lattice.helper.mounts import MOST_MOUNTS_BYTES, Mount, read_mounts
from lattice.helper.privilege import Kernel, make_private_folder
from lattice.helper.target import ProbeTarget
from lattice.helper.terminal_process import close_others

LARGEST_IMAGE_BYTES = 64 * 1024**3
PATIENCE_S = 4.0
"""Of a request that waits for a digest."""
_MOST_IMAGES = 16
_PART_BYTES = 1024 * 1024
_OPENED = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_OTHERS_WRITE = 0o022
_LOOP_MAJOR = 7
_LOOP_STATUS = 0x4C05
_STATUS = struct.Struct("=5Q 4I 64s 64s 32s 2Q")
_DIGEST_BYTES = 32
_NICE = 10
_MOST_DIGESTS = 256
_BEING_CHECKED = "it is still being checked: try again in a minute"


class Digest(Protocol):
    """A hash of `hashlib`."""

    def update(self, data: bytes, /) -> None: ...

    def digest(self) -> bytes: ...


class NotSigned(Exception):
    """The text is for the owner of the job."""


@dataclass(frozen=True, slots=True)
class _Stamp:
    """The state of a file, which any change of its content changes."""

    device: int
    inode: int
    size: int
    modified_ns: int
    changed_ns: int

    @classmethod
    def of(cls, descriptor: int) -> _Stamp:
        found = os.fstat(descriptor)
        return cls(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)

    @property
    def name(self) -> str:
        return hashlib.sha256(repr(self).encode()).hexdigest()


class ImageDigests:
    """SHA-256 of images. The folder is root's and has one file for each image."""

    def __init__(
        self,
        folder: Path,
        *,
        largest_bytes: int = LARGEST_IMAGE_BYTES,
        patience_s: float = PATIENCE_S,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create the folder. Raises `OSError`, and `ValueError` if others could change it."""
        make_private_folder(folder)
        self._folder = folder
        self._largest_bytes = largest_bytes
        self._patience_s = patience_s
        self._monotonic = monotonic

    def of(self, image: int) -> bytes:
        """The digest of the open file. Raises `NotSigned` if it is not known in time."""
        stamp = _Stamp.of(image)
        if stamp.size > self._largest_bytes:
            raise NotSigned(f"it is larger than {self._largest_bytes // 1024**3} GiB")
        if (known := self._known(stamp)) is not None:
            return known
        with self._alone(stamp) as lock:
            hashed = hashlib.sha256()
            at = self._read(image, 0, hashed, self._monotonic() + self._patience_s)
            if at is not None:
                if os.fork() == 0:
                    self._go_on(image, at, hashed, stamp, lock)
                raise NotSigned(_BEING_CHECKED)
            if _Stamp.of(image) != stamp:
                raise NotSigned("it changed while it was checked")
            self._keep(stamp, hashed.digest())
        return hashed.digest()

    def _read(self, image: int, at: int, hashed: Digest, until_s: float) -> int | None:
        """Read from `at` on. Returns how far it came if the time is over, None at the end."""
        while part := os.pread(image, _PART_BYTES, at):
            hashed.update(part)
            at += len(part)
            if self._monotonic() > until_s:
                return at
        return None

    def _go_on(self, image: int, at: int, hashed: Digest, stamp: _Stamp, lock: int) -> NoReturn:
        """Runs in a child of its own, which then ends."""
        try:
            os.setsid()
            os.nice(_NICE)
            close_others({image, lock})
            self._read(image, at, hashed, float("inf"))
            if _Stamp.of(image) == stamp:
                self._keep(stamp, hashed.digest())
        finally:
            os._exit(0)

    @contextmanager
    def _alone(self, stamp: _Stamp) -> Iterator[int]:
        """Let one process read an image. A child that goes on alone has the lock too."""
        lock = os.open(
            self._folder / f"{stamp.name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
        )
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise NotSigned(_BEING_CHECKED) from None
            yield lock
        finally:
            os.close(lock)

    def _known(self, stamp: _Stamp) -> bytes | None:
        raw = bytes_of(str(self._folder / stamp.name), _DIGEST_BYTES + 1)
        return raw if raw is not None and len(raw) == _DIGEST_BYTES else None

    def _keep(self, stamp: _Stamp, digest: bytes) -> None:
        names = list(self._folder.iterdir())
        if len(names) > _MOST_DIGESTS:
            for each in names:
                with suppress(OSError):
                    each.unlink()
        partial = self._folder / f"{stamp.name}.new"
        partial.write_bytes(digest)
        partial.rename(self._folder / stamp.name)


class SiteImages:
    """Images that the site has signed."""

    def __init__(self, keys_file: Path, digests: ImageDigests) -> None:
        """Raises `OSError`, and `ValueError` if others than root could change the keys."""
        self._keys_file = keys_file
        self._digests = digests
        read_keys(keys_file)

    def check(self, image: int, signature: bytes) -> None:
        """Check an open image. Raises `NotSigned`."""
        found = os.fstat(image)
        if not stat.S_ISREG(found.st_mode):
            raise NotSigned("it is no file")
        if found.st_uid != os.geteuid() or found.st_mode & _OTHERS_WRITE:
            raise NotSigned("others than root can change it")
        if not signature:
            raise NotSigned(f"it has no signature beside it ({SUFFIX})")
        digest = self._digests.of(image)
        try:
            # Read each time: a site withdraws a key at once.
            check_signature(signature, digest, read_keys(self._keys_file))
        except (BadImageSignature, OSError, ValueError) as problem:
            raise NotSigned(str(problem)) from None


class JobImages:
    """The images that a job runs in."""

    def __init__(
        self,
        kernel: Kernel,
        site: SiteImages,
        *,
        proc: Path = Path("/proc"),
        devices: Path = Path("/dev"),
        blocks: Path = Path("/sys/block"),
    ) -> None:
        self._kernel = kernel
        self._site = site
        self._proc = proc
        self._devices = devices
        self._blocks = blocks

    def require(self, target: ProbeTarget, owner: Owner) -> None:
        """Return if the process runs in signed images of this site only, and in one at least.

        Images that the whole node has are the site's own. One of them is enough if it is signed.
        Raises `NotSigned`.
        """
        mounts = _images(target.process.folder, "mountinfo")
        _check_mounts_are_joined(target)
        everywhere = {each.device for each in _images(target.proc, "self/mountinfo")}
        by_device = {each.device: each for each in mounts}
        if not by_device:
            raise NotSigned("this job runs in no uenv")
        if len(by_device) > _MOST_IMAGES:
            raise NotSigned(f"this job runs in {len(by_device)} images")
        signed, refused = 0, ""
        for device, mount in by_device.items():
            try:
                self._check(mount, owner)
                signed += 1
            except NotSigned as problem:
                refused = f"the image at {mount.path} is not accepted: {problem}"
                if device not in everywhere:
                    raise NotSigned(refused) from None
        if not signed:
            raise NotSigned(refused)

    def fault(self, image: int, signature: bytes) -> str:
        """Why an open image is not accepted; empty: it is."""
        try:
            self._site.check(image, signature)
        except NotSigned as problem:
            return f"it is not accepted: {problem}"
        return ""

    def _check(self, mount: Mount, owner: Owner) -> None:
        if mount.is_fuse or os.major(mount.device) != _LOOP_MAJOR:
            raise NotSigned("it is mounted from no file of this node")
        name = f"loop{os.minor(mount.device)}"
        status = self._status(name, mount)
        path = text_of_file(self._blocks / name / "loop/backing_file")
        with _opened(self._kernel, owner, path) as image:
            found = os.fstat(image)
            if (found.st_dev, found.st_ino) != status:
                raise NotSigned(f"{path} is another file meanwhile")
            self._site.check(image, read_signature(self._kernel, owner, path))

    def _status(self, name: str, mount: Mount) -> tuple[int, int]:
        """Device and inode of the file behind a loop device."""
        try:
            device = os.open(self._devices / name, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            raise NotSigned(f"the node has no device {name}") from None
        try:
            if os.fstat(device).st_rdev != mount.device:
                raise NotSigned(f"the node's device {name} is another one")
            raw = fcntl.ioctl(device, _LOOP_STATUS, bytes(_STATUS.size))
        except OSError:
            raise NotSigned(f"the node's device {name} can't be read") from None
        finally:
            os.close(device)
        fields = _STATUS.unpack(raw)
        if fields[3] or fields[4] or fields[6]:
            raise NotSigned("it is a part of a file")
        return fields[0], fields[1]


def read_signature(kernel: Kernel, owner: Owner, path: str) -> bytes:
    """The content of the signature beside an image; empty if there is none."""
    with suppress(NotSigned), _opened(kernel, owner, path + SUFFIX) as file:
        if stat.S_ISREG(os.fstat(file).st_mode):
            return os.read(file, LARGEST_BYTES)
    return b""


def text_of_file(path: Path) -> str:
    return os.fsdecode((bytes_of(str(path), LARGEST_BYTES) or b"").rstrip(b"\n"))


@contextmanager
def _opened(kernel: Kernel, owner: Owner, path: str) -> Iterator[int]:
    """A file, opened with the rights of the job's owner."""
    groups = os.getgroups()
    os.setgroups(owner.groups)
    kernel.set_file_group(owner.account.pw_gid)
    kernel.set_file_user(owner.account.pw_uid)
    try:
        file = os.open(path, _OPENED)
    except (OSError, ValueError):
        raise NotSigned(f"{owner.account.pw_name} can't open {path or 'its file'}") from None
    finally:
        kernel.set_file_user(os.geteuid())
        kernel.set_file_group(os.getegid())
        os.setgroups(groups)
    try:
        yield file
    finally:
        os.close(file)


def _images(folder: int, name: str) -> list[Mount]:
    text = text_of(folder, name, MOST_MOUNTS_BYTES)
    if not text or len(text) >= MOST_MOUNTS_BYTES:
        raise NotSigned("its mounts can't be read")
    return [each for each in read_mounts(text) if each.kind == "squashfs" or _is_squashfuse(each)]


def _is_squashfuse(mount: Mount) -> bool:
    return mount.is_fuse and "squash" in mount.kind + mount.source


def _check_mounts_are_joined(target: ProbeTarget) -> None:
    """Raise unless the terminal will see the mounts that were just read.

    Called after they were read, since the process can change them. It makes a user namespace, where
    it may mount and change its root, or it runs a program of root's that mounts. It can't come back
    from either.
    """
    process = target.process.folder
    own = {kind: _namespace(target.proc, f"self/ns/{kind}") for kind in ("user", "mnt")}
    if _namespace(process, "ns/user") != own["user"]:
        raise NotSigned("this job runs in a user namespace of its own")
    joined = {os.fstat(each).st_ino for each in target.namespaces}
    if _namespace(process, "ns/mnt") not in {*joined, own["mnt"]}:
        raise NotSigned("its mounts are others meanwhile, try again")


def _namespace(folder: int, path: str) -> int:
    try:
        return os.stat(path, dir_fd=folder).st_ino
    except OSError:
        raise NotSigned("its process has ended") from None
