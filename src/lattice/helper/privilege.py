"""Capabilities and identity by system calls: keep few capabilities, and drop all for a user.

It calls libc's `prctl` and `capset` by `ctypes`. The standard library has neither, and one more
package that runs as root would be one more to trust.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import signal
import stat
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from enum import IntEnum
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_CAPBSET_READ = 23
_PR_CAPBSET_DROP = 24
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_CLEAR_ALL = 4
_CAPABILITY_VERSION_3 = 0x20080522
_KEYCTL_NUMBERS = {"x86_64": 250, "aarch64": 219, "ppc64le": 271, "s390x": 280, "riscv64": 219}
_KEYCTL_JOIN_SESSION_KEYRING = 1
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


class Capability(IntEnum):
    """The capabilities that some role needs, with the kernel's numbers."""

    KILL = 5
    SETGID = 6
    SETUID = 7
    SYS_CHROOT = 18
    SYS_PTRACE = 19
    SYS_ADMIN = 21


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Data(ctypes.Structure):
    _fields_ = (
        ("effective", ctypes.c_uint32),
        ("permitted", ctypes.c_uint32),
        ("inheritable", ctypes.c_uint32),
    )


def checked(result: int) -> int:
    """The result of a call of libc. Raises `OSError` for a negative one."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


class Kernel:
    """libc, with its errors as `OSError`."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)

    def prctl(self, option: int, *arguments: int) -> int:
        padded = [ctypes.c_ulong(each) for each in (*arguments, 0, 0, 0, 0)[:4]]
        return checked(self._libc.prctl(option, *padded))

    def set_capabilities(self, capabilities: Collection[int]) -> None:
        """Set permitted and effective to these, and inheritable to none."""
        bits = sum(1 << each for each in capabilities)
        data = (_Data * 2)()
        for half in range(2):
            part = bits >> (32 * half) & 0xFFFFFFFF
            data[half] = _Data(part, part, 0)
        header = _Header(_CAPABILITY_VERSION_3, 0)
        checked(self._libc.capset(ctypes.byref(header), ctypes.byref(data)))

    def set_file_user(self, uid: int) -> None:
        """Access files as this user until the next call; nothing else of the process changes."""
        self._libc.setfsuid(uid)
        # setfsuid returns the previous user and no error; an invalid uid changes nothing.
        if self._libc.setfsuid(-1) != uid:
            raise PermissionError("the process did not become the user of its files")

    def set_file_group(self, gid: int) -> None:
        """Access files as this group until the next call; nothing else of the process changes."""
        self._libc.setfsgid(gid)
        if self._libc.setfsgid(-1) != gid:
            raise PermissionError("the process did not become the group of its files")

    def empty_bounding_set(self) -> None:
        """After this no executed program can gain a capability, setuid or not."""
        for number in range(64):
            try:
                if self.prctl(_PR_CAPBSET_READ, number):
                    self.prctl(_PR_CAPBSET_DROP, number)
            except OSError:  # past the last capability of this kernel
                return

    def join_namespace(self, descriptor: int) -> None:
        """Join a namespace of any kind; only children of the caller join a PID namespace."""
        checked(self._libc.setns(descriptor, 0))

    def unshare(self, kinds: int) -> None:
        """Create new namespaces as copies of the current ones."""
        checked(self._libc.unshare(kinds))

    def mount(self, source: str, target: str, kind: str, flags: int) -> None:
        texts = [each.encode() for each in (source, target, kind)]
        checked(self._libc.mount(*texts, ctypes.c_ulong(flags), None))

    def call(self, number: int, *arguments: int | bytes | None) -> int:
        """Make a system call that libc has no function for."""
        converted = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
        return checked(self._libc.syscall(ctypes.c_long(number), *converted))

    def new_keyring(self) -> None:
        """Drop the session keyring of the root process, if there is one."""
        number = _KEYCTL_NUMBERS.get(os.uname().machine)
        if number is not None:
            with suppress(OSError):
                self.call(number, _KEYCTL_JOIN_SESSION_KEYRING, None)

    def die_with_parent(self) -> None:
        self.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    def adopt_orphans(self) -> None:
        """Orphaned descendants become children of this process, not of init."""
        self.prctl(_PR_SET_CHILD_SUBREAPER, 1)

    def forbid_new_privileges(self) -> None:
        """After this no executed program can gain rights by setuid or file capabilities."""
        self.prctl(_PR_SET_NO_NEW_PRIVS, 1)

    def hide_memory(self) -> None:
        """Prevent core files, debuggers, and reads of `/proc/self` by other processes."""
        self.prctl(_PR_SET_DUMPABLE, 0)


@contextmanager
def as_files_of(kernel: Kernel, uid: int) -> Iterator[None]:
    """Access files as this user; everything else of the process stays as it is."""
    kernel.set_file_user(uid)
    try:
        yield
    finally:
        kernel.set_file_user(os.geteuid())


def make_private_folder(folder: Path) -> None:
    """Create a folder of root's. Raises `OSError`, and `ValueError` if others could change it."""
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found, above = folder.lstat(), folder.parent.stat()
    root = os.geteuid()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != root or found.st_mode & _OTHERS:
        raise ValueError(f"{folder} must be a folder of root's that is closed to all others")
    if above.st_uid != root or above.st_mode & _OTHERS_WRITE:
        raise ValueError(f"{folder.parent} must belong to root and be writable by root alone")


def keep_only(kernel: Kernel, capabilities: Collection[Capability]) -> None:
    """Limit this process and all processes it starts."""
    kernel.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
    kernel.empty_bounding_set()
    kernel.set_capabilities(capabilities)
    kernel.hide_memory()


def become(kernel: Kernel, account: pwd.struct_passwd, groups: Sequence[int] | None = None) -> None:
    """Make this process the user's, groups included; this can't be undone.

    `groups` must be read before entering a job: reading them opens files and loads libraries, which
    in a job's file system are not the node's.
    """
    if groups is None:
        os.initgroups(account.pw_name, account.pw_gid)
    else:
        os.setgroups(groups)
    os.setresgid(account.pw_gid, account.pw_gid, account.pw_gid)
    os.setresuid(account.pw_uid, account.pw_uid, account.pw_uid)
    kernel.set_capabilities(())
    # Neither sbatch nor munge needs a setuid program, and a profile can't gain rights by one.
    kernel.forbid_new_privileges()
    uids, gids = os.getresuid(), os.getresgid()
    if set(uids) != {account.pw_uid} or set(gids) != {account.pw_gid} or 0 in (*uids, *gids):
        raise PermissionError("the process did not become the user")
    try:
        os.setuid(0)
    except PermissionError:
        return
    raise PermissionError("the process could become root again")
