"""Mounts an image of tools for one terminal only.

Two processes share the work. The one inside the job opens the image with the owner's rights. The
holder, outside, creates a mount from it: read-only, no devices, nothing setuid. The inner process
attaches that mount in its own mount namespace. So no path of the job is used for a device, and no
device is opened under the job's limits.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import stat
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

from lattice.base import packet
from lattice.domain.image_signature import LARGEST_BYTES, SUFFIX
from lattice.helper.job_entry import CanNotEnter, Owner
from lattice.helper.privilege import Kernel

PLACES = ("/user-tools", "/mnt", "/media", "/srv")
"""The first one if it exists; of the others, the first that is empty."""
PATIENCE_S = 5.0
_OPENED = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_MOUNTS = 0x00020000
_SLAVE = 1 << 19 | 1 << 14
"""MS_SLAVE | MS_REC: later mounts of the job appear here, mounts made here don't appear there."""
_FREE_LOOP, _CONFIGURE_LOOP = 0x4C82, 0x4C0A
_LOOP = struct.Struct("=II 5Q 4I 64s 64s 32s 2Q 8Q")
_LOOP_FLAGS = 1 | 4
"""Read-only, and freed with its last mount."""
_MOVE_MOUNT, _FSOPEN, _FSCONFIG, _FSMOUNT = 429, 430, 431, 432
_SET_FLAG, _SET_STRING, _CREATE = 0, 1, 6
_MOUNT_FLAGS = 1 | 2 | 4
"""Read-only, no setuid, no devices."""
_BY_DESCRIPTORS = 0x00000004 | 0x00000040
_TRIES = 16

ImageCheck: TypeAlias = Callable[[int, bytes], str]
"""Returns why an open image with this signature is not accepted; empty: it is."""


def bring(kernel: Kernel, owner: Owner, path: str, holder: socket.socket) -> str:
    """Runs inside the job, before the process becomes the owner. Returns the mount's path.

    Raises `CanNotEnter`.
    """
    image = _open(kernel, owner, path)
    passing = [image]
    with suppress(CanNotEnter):
        passing.append(_open(kernel, owner, path + SUFFIX))
    try:
        holder.settimeout(PATIENCE_S)
        packet.send(holder, b"image", passing)
        reply, passed = packet.receive(holder)
    except OSError:
        raise CanNotEnter(f"{path} could not be mounted in time") from None
    finally:
        packet.close_all(passing)
    if len(passed) != 1:
        raise CanNotEnter(f"{path} can't be mounted: {reply.decode(errors='replace')}")
    try:
        kernel.unshare(_NEW_MOUNTS)
        kernel.mount("none", "/", "", _SLAVE)
        return _attach(kernel, passed[0])
    except OSError as error:
        reply = os.strerror(error.errno or 0).encode()
        raise CanNotEnter(f"{path} can't be attached: {reply.decode()}") from None
    finally:
        packet.close_all(passed)


def _open(kernel: Kernel, owner: Owner, path: str) -> int:
    # User, group and supplementary groups: with the user alone, root's groups would still count.
    os.setgroups(owner.groups)
    kernel.set_file_group(owner.account.pw_gid)
    kernel.set_file_user(owner.account.pw_uid)
    try:
        image = os.open(path, _OPENED)
    except (OSError, ValueError) as error:
        why = os.strerror(getattr(error, "errno", None) or errno.EINVAL)
        raise CanNotEnter(f"{owner.account.pw_name} can't open {path}: {why}") from None
    finally:
        kernel.set_file_user(0)
        kernel.set_file_group(0)
    if not stat.S_ISREG(os.fstat(image).st_mode):
        os.close(image)
        raise CanNotEnter(f"{path} is no file")
    return image


def _attach(kernel: Kernel, mount: int) -> str:
    for path in PLACES:
        try:
            folder = os.open(path, _FOLDER)
        except OSError:
            continue
        try:
            if path == PLACES[0] or not any(Path(path).iterdir()):
                kernel.call(_MOVE_MOUNT, mount, b"", folder, b"", _BY_DESCRIPTORS)
                return path
        finally:
            os.close(folder)
    raise CanNotEnter(f"the node has no folder {PLACES[0]} to mount tools at")


def serve(kernel: Kernel, inside: socket.socket, check: ImageCheck | None = None) -> None:
    """Runs in the holder: create a mount from the image, if one arrives and passes `check`."""
    inside.settimeout(PATIENCE_S)
    try:
        _, descriptors = packet.receive(inside)
    except (OSError, packet.BadPacket):
        return
    if not descriptors:
        return
    try:
        reply = _fault(descriptors, check) if check is not None else ""
        mounts: list[int] = []
        if not reply:
            reply, mounts = _mounted(kernel, descriptors)
        packet.send(inside, reply.encode(), mounts)
        packet.close_all(mounts)
    except OSError:
        return
    finally:
        packet.close_all(descriptors)


def _fault(descriptors: Sequence[int], check: ImageCheck) -> str:
    """Why the site does not accept the image; empty: it does."""
    image, *signatures = descriptors
    try:
        signature = os.read(signatures[0], LARGEST_BYTES) if signatures else b""
    except OSError:
        signature = b""
    return check(image, signature)


def _mounted(kernel: Kernel, descriptors: Sequence[int]) -> tuple[str, list[int]]:
    try:
        device, name = _loop(descriptors[0])
        try:
            return "mounted", [_make_mount(kernel, name)]
        finally:
            os.close(device)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.EUCLEAN, errno.EIO):
            return "it is no squashfs image", []
        return os.strerror(error.errno or 0), []


def _loop(image: int) -> tuple[int, str]:
    """A loop device for the image; the kernel frees it after its last use."""
    control = os.open("/dev/loop-control", os.O_RDWR | os.O_CLOEXEC)
    try:
        for _ in range(_TRIES):
            name = f"/dev/loop{fcntl.ioctl(control, _FREE_LOOP)}"
            device = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
            try:
                asked = _LOOP.pack(
                    image, 0, *(0,) * 5, 0, 0, 0, _LOOP_FLAGS, b"", b"", b"", *(0,) * 10
                )
                fcntl.ioctl(device, _CONFIGURE_LOOP, asked)
            except OSError as error:
                os.close(device)
                if error.errno != errno.EBUSY:  # another process took it
                    raise
            else:
                return device, name
    finally:
        os.close(control)
    raise OSError(errno.EBUSY, "no loop device is free")


def _make_mount(kernel: Kernel, device: str) -> int:
    made = kernel.call(_FSOPEN, b"squashfs", 1)
    try:
        kernel.call(_FSCONFIG, made, _SET_STRING, b"source", device.encode(), 0)
        kernel.call(_FSCONFIG, made, _SET_FLAG, b"ro", None, 0)
        kernel.call(_FSCONFIG, made, _CREATE, None, None, 0)
        return kernel.call(_FSMOUNT, made, 1, _MOUNT_FLAGS)
    finally:
        os.close(made)
