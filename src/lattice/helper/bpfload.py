"""Loads the eBPF program in a child process, which passes back descriptors and exits.

libbpf is a C library and reads the kernel's whole type information (BTF). In a child, its memory
and its crashes don't affect the helper. The helper holds the descriptors, and the program runs as
long as they are open. Only this step needs full root.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from lattice.base import packet
from lattice.domain.latency import JOB_COUNTERS

MAPS = ("jobs", "namespaces", "lost", "peers")
"""The maps that are read, in the order in which the child passes them."""
NOT_INSTALLED = "the eBPF program is not installed"
_WALK = b"dump_peers"
_BTF = Path("/sys/kernel/btf/vmlinux")
_LIBRARY = "libbpf.so.1"
_LARGEST_OBJECT = 1024 * 1024
_MOST_DESCRIPTORS = 32
_PATIENCE_S = 20.0
_LONGEST_ERROR = 400
_MOST_COPIES = 16_384
"""Copies of a job's counts, one for each job and CPU. At 768 bytes each that is 13 MB at most."""
_FEWEST_JOBS, _MOST_JOBS = 64, 256


class Refused(Exception):
    """Why the program does not run here, for people; `last_error` is the component's own error."""

    def __init__(self, reason: str, last_error: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.last_error = last_error


@dataclass(frozen=True, slots=True)
class Loaded:
    """The running program. It ends when the last descriptor in `links` is closed."""

    jobs: int
    namespaces: int
    lost: int
    peers: int
    walk: int
    """The link of the program that walks over TCP sockets when it is asked."""
    links: tuple[int, ...]
    cpus: int
    """How many copies a per-CPU value has."""


def default_object() -> Path:
    """Where `ebpf/build` puts the program for this machine."""
    return Path(__file__).parent / f"latency.{os.uname().machine}.bpf.o"


def load(file: Path, roots: Sequence[int] = (), btf: Path = _BTF) -> Loaded:
    """Load and attach the program of that file. Raises `Refused` and nothing else.

    `roots` are the inodes of this node's root groups, of the freezer and of v2; 0 for a true root.
    """
    try:
        program = _read(file)
        if not btf.exists():
            raise Refused("the kernel has no BTF", f"{btf} is not there")
        return _loaded_by_a_child(program, roots)
    except (OSError, ValueError, packet.BadPacket) as error:
        raise Refused("the eBPF program could not be loaded", str(error)) from error


def room_for_jobs(cpus: int) -> int:
    """How many jobs can be counted at once. On nodes with many CPUs each job takes more memory."""
    return max(_FEWEST_JOBS, min(_MOST_JOBS, _MOST_COPIES // max(cpus, 1)))


def _read(file: Path) -> bytes:
    try:
        opened = file.open("rb")
    except FileNotFoundError:
        raise Refused(NOT_INSTALLED, f"{file} is not there") from None
    with opened:
        found = os.fstat(opened.fileno())
        if found.st_uid != 0 or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            problem = f"{file} must belong to root and be writable by root alone"
            raise Refused("the eBPF program can't be trusted", problem)
        program = opened.read(_LARGEST_OBJECT + 1)
    if len(program) > _LARGEST_OBJECT:
        raise Refused("the eBPF program can't be trusted", f"{file} is too large")
    return program


def _loaded_by_a_child(program: bytes, roots: Sequence[int]) -> Loaded:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        pid = os.fork()
        if pid == 0:
            _load_and_report(program, roots, theirs)
        theirs.close()
        ours.settimeout(_PATIENCE_S)
        try:
            body, descriptors = packet.receive(ours, most_descriptors=_MOST_DESCRIPTORS)
        except TimeoutError:
            raise Refused("loading the eBPF program took too long") from None
        finally:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    return _understood(body, descriptors)


def _understood(body: bytes, descriptors: Sequence[int]) -> Loaded:
    answer: dict[str, Any] = {"reason": "loading the eBPF program failed"}
    if body:
        answer = json.loads(body)
    if "reason" in answer or len(descriptors) <= len(MAPS) + 1:
        packet.close_all(descriptors)
        raise Refused(answer.get("reason", "not all of it came"), answer.get("last_error", ""))
    jobs, namespaces, lost, peers, walk, *links = descriptors
    return Loaded(
        jobs=jobs,
        namespaces=namespaces,
        lost=lost,
        peers=peers,
        walk=walk,
        links=tuple(links),
        cpus=answer["cpus"],
    )


def _load_and_report(program: bytes, roots: Sequence[int], to: socket.socket) -> NoReturn:
    """Runs in the child and ends it."""
    answer: dict[str, object]
    descriptors: Sequence[int] = ()
    log = os.memfd_create("libbpf")
    try:
        # libbpf writes many lines to standard error.
        os.dup2(log, 2)
        try:
            cpus, descriptors = _loaded(program, roots)
            answer = {"cpus": cpus}
        except OSError as error:
            reason = f"the kernel refused: {os.strerror(error.errno or 0)}"
            answer = {"reason": reason, "last_error": _failure_line(log)}
        except Refused as refused:
            answer = {"reason": refused.reason, "last_error": refused.last_error}
        packet.send(
            to, json.dumps(answer).encode(), descriptors, most_descriptors=_MOST_DESCRIPTORS
        )
    finally:
        os._exit(0)


def _failure_line(descriptor: int) -> str:
    """The line in which libbpf names the failure. A long trace of the verifier precedes it."""
    size = os.fstat(descriptor).st_size
    raw = os.pread(descriptor, 16 * 1024, max(0, size - 16 * 1024))
    lines = raw.decode(errors="replace").splitlines()
    telling = [line for line in lines if line.startswith("libbpf:") and "failed" in line]
    return " ".join((telling or lines)[:1])[:_LONGEST_ERROR]


def _loaded(program: bytes, roots: Sequence[int]) -> tuple[int, list[int]]:
    library = _library()
    cpus = _whole(library.libbpf_num_possible_cpus())
    opened = _there(library.bpf_object__open_mem(program, len(program), None))
    jobs = _there(library.bpf_object__find_map_by_name(opened, b"jobs"))
    if library.bpf_map__value_size(jobs) != 8 * JOB_COUNTERS:
        # A lookup would write past the buffer, or mix up the counters.
        raise Refused("the eBPF program is of another version", "its map `jobs` differs")
    _whole(library.bpf_map__set_max_entries(jobs, room_for_jobs(cpus)))
    _whole(library.bpf_object__load(opened))
    roots_map = _whole(library.bpf_object__find_map_fd_by_name(opened, b"roots"))
    for number, root in enumerate(roots):
        key, value = ctypes.c_uint32(number), ctypes.c_uint64(root)
        _whole(library.bpf_map_update_elem(roots_map, ctypes.byref(key), ctypes.byref(value), 0))
    found = [
        _whole(library.bpf_object__find_map_fd_by_name(opened, name.encode())) for name in MAPS
    ]
    walk = _there(library.bpf_object__find_program_by_name(opened, _WALK))
    others = [each for each in _programs(library, opened) if each != walk]
    for each in (walk, *others):
        link = _there(library.bpf_program__attach(each))
        found.append(_whole(library.bpf_link__fd(link)))
    return cpus, found


def _programs(library: ctypes.CDLL, opened: int) -> Iterator[int]:
    each = library.bpf_object__next_program(opened, None)
    while each:
        yield each
        each = library.bpf_object__next_program(opened, each)


def _library() -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(_LIBRARY, use_errno=True)
    except OSError as error:
        raise Refused(f"{_LIBRARY} is not installed", str(error)) from None
    pointer = ctypes.c_void_p
    for name, result, arguments in (
        ("libbpf_num_possible_cpus", ctypes.c_int, ()),
        ("bpf_object__open_mem", pointer, (ctypes.c_char_p, ctypes.c_size_t, pointer)),
        ("bpf_object__find_map_by_name", pointer, (pointer, ctypes.c_char_p)),
        ("bpf_object__find_program_by_name", pointer, (pointer, ctypes.c_char_p)),
        ("bpf_map__value_size", ctypes.c_uint32, (pointer,)),
        ("bpf_map__set_max_entries", ctypes.c_int, (pointer, ctypes.c_uint32)),
        ("bpf_object__load", ctypes.c_int, (pointer,)),
        ("bpf_object__find_map_fd_by_name", ctypes.c_int, (pointer, ctypes.c_char_p)),
        ("bpf_map_update_elem", ctypes.c_int, (ctypes.c_int, pointer, pointer, ctypes.c_uint64)),
        ("bpf_object__next_program", pointer, (pointer, pointer)),
        ("bpf_program__attach", pointer, (pointer,)),
        ("bpf_link__fd", ctypes.c_int, (pointer,)),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def _there(found: int | None) -> int:
    if not found:
        raise _error(ctypes.get_errno())
    return found


def _whole(result: int) -> int:
    if result < 0:
        raise _error(-result)
    return result


def _error(number: int) -> OSError:
    return OSError(number, os.strerror(number))
