"""Small measures of a machine, one figure for each call. Stand-alone: Python 3.8 and no more.

Each function does a fixed amount of work and returns work per second, or seconds. Nothing here
repeats or averages. `NotPossible` carries the reason where a machine can't be measured so.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

MIB = 1024 * 1024
COPIED_BYTES = 64 * MIB
HASHED_BYTES = 16 * MIB
LOOPS = 400_000
SENT_BYTES = 64 * MIB
TRIPS = 400
PIECE = MIB


class NotPossible(Exception):
    """This machine can't be measured so; the text is the reason."""


def memory_copy() -> float:
    """Bytes a second of one processor that copies memory."""
    source, target = bytearray(COPIED_BYTES), bytearray(COPIED_BYTES)
    view = memoryview(target)
    view[:] = source  # the pages of both are there from now on
    began = time.perf_counter()
    view[:] = source
    return COPIED_BYTES / (time.perf_counter() - began)


def hash_rate() -> float:
    """Bytes a second of one processor that computes SHA-256."""
    data = bytes(HASHED_BYTES)
    began = time.perf_counter()
    hashlib.sha256(data).digest()
    return HASHED_BYTES / (time.perf_counter() - began)


def loop_rate() -> float:
    """Steps a second of one processor in a loop of Python."""
    number = 1
    began = time.perf_counter()
    for _ in range(LOOPS):
        number = (number * 1103515245 + 12345) & 0x7FFFFFFF
    return LOOPS / (time.perf_counter() - began)


@contextmanager
def scratch_file(folder: str, size: int) -> Iterator[tuple[int, str, float]]:
    """A file of this size on the disk: descriptor, path, and bytes a second of writing it.

    Its data are random, since some disks compress. It is removed at the end.
    """
    piece = os.urandom(PIECE)
    try:
        descriptor, path = tempfile.mkstemp(prefix="lattice-", dir=folder)
    except OSError as error:
        raise NotPossible(f"no file can be written in {folder}: {error.strerror}") from None
    try:
        began = time.perf_counter()
        try:
            for _ in range(size // PIECE):
                os.write(descriptor, piece)
            os.fsync(descriptor)
        except OSError as error:
            raise NotPossible(f"writing in {folder}: {error.strerror}") from None
        yield descriptor, path, size / (time.perf_counter() - began)
    finally:
        os.close(descriptor)
        os.unlink(path)


def disk_read(path: str) -> tuple[float, str]:
    """Bytes a second of reading the file past the page cache, and how that was done."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
        method = "O_DIRECT"
    except OSError:
        descriptor, method = os.open(path, os.O_RDONLY), "page cache dropped before"
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    # O_DIRECT needs memory at a multiple of the block size: a page of its own.
    with mmap.mmap(-1, PIECE) as memory:
        try:
            count, began = 0, time.perf_counter()
            while True:
                read = os.readv(descriptor, [memory])
                if not read:
                    break
                count += read
            return count / (time.perf_counter() - began), method
        except OSError as error:
            raise NotPossible(f"reading {path}: {error.strerror}") from None
        finally:
            os.close(descriptor)


def received(connection: socket.socket, count: int) -> bytearray:
    """Exactly `count` bytes. Raises `NotPossible` if the other side ends before."""
    data = bytearray(count)
    view, have = memoryview(data), 0
    while have < count:
        got = connection.recv_into(view[have:], min(PIECE, count - have))
        if not got:
            raise NotPossible("the other side closed the connection")
        have += got
    return data


def send_rate(connection: socket.socket, count: int = SENT_BYTES) -> float:
    """Bytes a second to the other side, which runs `answer_rate`."""
    piece = bytes(PIECE)
    began = time.perf_counter()
    for _ in range(count // PIECE):
        connection.sendall(piece)
    received(connection, 1)
    return count / (time.perf_counter() - began)


def answer_rate(connection: socket.socket, count: int = SENT_BYTES) -> None:
    """Take what `send_rate` sends."""
    for _ in range(count // PIECE):
        received(connection, PIECE)
    connection.sendall(b"k")


def round_trip(connection: socket.socket, trips: int = TRIPS) -> float:
    """Seconds from a byte to its echo, in the mean; the other side runs `answer_trips`."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    began = time.perf_counter()
    for _ in range(trips):
        connection.sendall(b"p")
        received(connection, 1)
    return (time.perf_counter() - began) / trips


def answer_trips(connection: socket.socket, trips: int = TRIPS) -> None:
    """Echo what `round_trip` sends."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for _ in range(trips):
        connection.sendall(received(connection, 1))


@contextmanager
def loopback() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two ends of a TCP connection of this machine to itself."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(1)
        with socket.create_connection(listener.getsockname(), timeout=30) as first:
            second, _ = listener.accept()
            with second:
                yield first, second


def loopback_rate() -> float:
    """Bytes a second over TCP inside the machine."""
    with loopback() as (first, second):
        other = threading.Thread(target=answer_rate, args=(second,), daemon=True)
        other.start()
        found = send_rate(first)
        other.join()
    return found


def loopback_trip() -> float:
    """Seconds of a round trip over TCP inside the machine."""
    with loopback() as (first, second):
        other = threading.Thread(target=answer_trips, args=(second,), daemon=True)
        other.start()
        found = round_trip(first)
        other.join()
    return found
