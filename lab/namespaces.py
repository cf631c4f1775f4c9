"""The few namespace calls that Python 3.11 does not wrap, for the calling thread only."""

from __future__ import annotations

import ctypes
import fcntl
import os
import struct
from concurrent.futures import ThreadPoolExecutor

_CLONE_NEWNS = 0x00020000
_CLONE_NEWNET = 0x40000000
_GET_MOUNT_NAMESPACE_ID = 0x8008B705


def set_network_namespace(handle: int) -> None:
    """Move the calling thread into the network namespace behind an open file."""
    _call("setns", handle, _CLONE_NEWNET)


def lowest_mount_id_cpu() -> int:
    """The CPU on which a new mount namespace gets the lowest id.

    Kernels from 6.18 on hand these ids out in batches per CPU, and refuse (EINVAL) to bind a
    namespace whose id is below that of the one it is bound in, which is what job_container/tmpfs
    does for each job. A node made on the CPU with the lowest ids is below all of its jobs.
    """
    cpus = sorted(os.sched_getaffinity(0))
    ids = [_in_own_thread(cpu) for cpu in cpus]
    return min(zip(ids, cpus, strict=True))[1]


def _in_own_thread(cpu: int) -> int:
    # A thread that is thrown away: it leaves the program's mount namespace for good.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(_new_mount_namespace_id, cpu).result()


def _new_mount_namespace_id(cpu: int) -> int:
    os.sched_setaffinity(0, {cpu})
    _call("unshare", _CLONE_NEWNS)
    handle = os.open("/proc/thread-self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    try:
        answer = bytearray(8)
        fcntl.ioctl(handle, _GET_MOUNT_NAMESPACE_ID, answer)
    except OSError:  # a kernel that does not tell ids does not compare them either
        return 0
    finally:
        os.close(handle)
    return int(struct.unpack("Q", answer)[0])


def _call(name: str, *arguments: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc[name](*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
