"""The program of a check job: one process on each node. Stand-alone: Python 3.8 and no more.

It measures the node's disk, the TCP connection to the next node, and the bandwidth of an all-reduce
over all nodes. In a node with several GPUs it runs the tests of NCCL or RCCL, where installed. It
prints one line of JSON for its node and ends. What can't be measured has a reason and no number.

The processes meet at the node of the batch script (`SLURM_LAUNCH_NODE_IPADDR`), at a port that the
script chose. A secret of the job keeps strangers out.
"""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

try:
    import measures  # type: ignore[import-not-found]
except ImportError:
    from lattice.base.portable import measures

DISK_BYTES = 128 * measures.MIB
REDUCED_BYTES: int = 16 * measures.MIB
ROUNDS = 7
MEET_S = 60.0
STEP_S = 60.0
GPU_TESTS_S = 180.0
ONE_NODE = "one node has no other to reduce with"
ONE_GPU = "the node has fewer than two GPUs for this job"
NO_TESTS = "all_reduce_perf of NCCL or RCCL is not installed"
RING, GLOO = "TCP ring in Python", "torch gloo"
_BUS = re.compile(r"#\s*Avg bus bandwidth\s*:\s*([0-9.]+)")
_LONGEST = 200


class Ring:
    """The connections of this process: to the next one, and from the one before."""

    def __init__(self, rank: int, size: int, ahead: socket.socket, behind: socket.socket) -> None:
        self.rank = rank
        self.size = size
        self.ahead = ahead
        self.behind = behind

    def exchange(self, piece: bytes) -> bytes:
        """Send to the next one, and receive as much from the one before."""
        data, sent, have = bytearray(len(piece)), 0, 0
        source, target = memoryview(piece), memoryview(data)
        # Not by two threads: they would wait for each other's turn in the interpreter.
        while sent < len(piece) or have < len(piece):
            unsent = [self.ahead] if sent < len(piece) else []
            missing = [self.behind] if have < len(piece) else []
            readable, writable, _ = select.select(missing, unsent, [], STEP_S)
            if not readable and not writable:
                raise measures.NotPossible("a node stopped answering")
            if writable:
                sent += self.ahead.send(source[sent : sent + measures.PIECE], socket.MSG_DONTWAIT)
            if readable:
                got = self.behind.recv_into(target[have:], 0, socket.MSG_DONTWAIT)
                if not got:
                    raise measures.NotPossible("the other side closed the connection")
                have += got
        return bytes(data)

    def close(self) -> None:
        self.ahead.close()
        self.behind.close()


def _line(connection: socket.socket) -> bytes:
    found = b""
    while not found.endswith(b"\n"):
        piece = connection.recv(1)
        if not piece or len(found) > 65536:
            raise measures.NotPossible("the processes of the nodes did not meet")
        found += piece
    return found[:-1]


def _send(connection: socket.socket, value: Any) -> None:
    connection.sendall(json.dumps(value).encode() + b"\n")


def _listener(host: str = "", port: int = 0) -> socket.socket:
    found = socket.socket()
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    found.settimeout(MEET_S)
    found.bind((host, port))
    found.listen(1024)
    return found


def _lead(port: int, size: int, secret: str, own: dict[str, Any]) -> list[dict[str, Any]]:
    """Rank 0 collects what each process offers, and sends the list to all."""
    offers, until = {0: own}, time.monotonic() + MEET_S
    joined = {}
    with _listener(port=port) as listener:
        while len(offers) < size:
            if time.monotonic() > until:
                raise measures.NotPossible(f"only {len(offers)} of {size} nodes met")
            connection, address = listener.accept()
            connection.settimeout(STEP_S)
            offer = json.loads(_line(connection))
            if offer.get("secret") != secret:
                connection.close()
                continue
            offer["address"] = address[0]
            offers[offer["rank"]], joined[offer["rank"]] = offer, connection
    everybody = [offers[rank] for rank in sorted(offers)]
    for connection in joined.values():
        _send(connection, everybody)
        connection.close()
    return everybody


def _join(host: str, port: int, own: dict[str, Any]) -> list[dict[str, Any]]:
    until = time.monotonic() + MEET_S
    while True:
        try:
            with socket.create_connection((host, port), timeout=STEP_S) as connection:
                _send(connection, own)
                found: list[dict[str, Any]] = json.loads(_line(connection))
                return found
        except (OSError, ValueError):  # noqa: PERF203 - the first one may not listen yet
            if time.monotonic() > until:
                raise
            time.sleep(0.2)


def meet(
    rank: int, size: int, host: str, port: int, secret: str, node: str
) -> tuple[Ring, list[dict[str, Any]]]:
    """The ring of all processes, and what each of them offers."""
    with _listener() as listener:
        own = {
            "rank": rank,
            "node": node,
            "secret": secret,
            "address": host,
            "port": listener.getsockname()[1],
            "torch": _has_torch(),
        }
        everybody = _lead(port, size, secret, own) if rank == 0 else _join(host, port, own)
        following = everybody[(rank + 1) % size]
        ahead = socket.create_connection((following["address"], following["port"]), timeout=STEP_S)
        _send(ahead, secret)
        while True:
            behind, _ = listener.accept()
            behind.settimeout(STEP_S)
            if json.loads(_line(behind)) == secret:
                break
            behind.close()
    for each in (ahead, behind):
        each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return Ring(rank, size, ahead, behind), everybody


def _has_torch() -> bool:
    import importlib.util

    return importlib.util.find_spec("torch") is not None


def ring_reduce(ring: Ring, size: int = REDUCED_BYTES) -> float:
    """Seconds of one all-reduce by exclusive or. Raises `NotPossible` if its result is wrong."""
    part = size // ring.size
    blocks = [bytes([each + 1]) * part for each in range(ring.size)]
    parts = [blocks[ring.rank]] * ring.size
    began = time.perf_counter()
    for step in range(ring.size - 1):
        at = (ring.rank - step) % ring.size
        came, at = ring.exchange(parts[at]), (at - 1) % ring.size
        both = int.from_bytes(came, "little") ^ int.from_bytes(parts[at], "little")
        parts[at] = both.to_bytes(part, "little")
    for step in range(ring.size - 1):
        at = (ring.rank + 1 - step) % ring.size
        parts[(at - 1) % ring.size] = ring.exchange(parts[at])
    passed = time.perf_counter() - began
    right = 0
    for each in range(ring.size):
        right ^= each + 1
    if any(each != bytes([right & 0xFF]) * part for each in parts):
        raise measures.NotPossible("the all-reduce gave a wrong result")
    return passed


def _of_bus(seconds: float, count: int) -> float:
    """Bytes a second on the slowest connection, as the tests of NCCL count them."""
    return 2 * (count - 1) / count * REDUCED_BYTES / seconds


def by_ring(ring: Ring) -> tuple[float, str]:
    ring_reduce(ring)
    return _of_bus(statistics.median(ring_reduce(ring) for _ in range(ROUNDS)), ring.size), RING


def by_gloo(ring: Ring, host: str, port: int) -> tuple[float, str]:
    """The same by PyTorch on the processors."""
    from datetime import timedelta

    import torch  # type: ignore[import-not-found]
    from torch import distributed

    distributed.init_process_group(
        "gloo",
        init_method=f"tcp://{host}:{port}",
        rank=ring.rank,
        world_size=ring.size,
        timeout=timedelta(seconds=STEP_S),
    )
    took = []
    for _ in range(ROUNDS + 1):
        data = torch.full((REDUCED_BYTES // 4,), float(ring.rank + 1))
        began = time.perf_counter()
        distributed.all_reduce(data)
        took.append(time.perf_counter() - began)
        if data[0].item() != ring.size * (ring.size + 1) / 2 or data[-1].item() != data[0].item():
            raise measures.NotPossible("the all-reduce gave a wrong result")
    distributed.destroy_process_group()
    return _of_bus(float(statistics.median(took[1:])), ring.size), GLOO


def gpus_here() -> int:
    """How many GPUs Slurm gave this process."""
    for name in ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
        if os.environ.get(name, "").strip():
            return len(os.environ[name].split(","))
    return 0


def in_node() -> dict[str, Any]:
    """The all-reduce of the node's own GPUs, by the tests of NCCL or RCCL."""
    program, count = shutil.which("all_reduce_perf"), gpus_here()
    if count < 2:
        return _absent("gpu_all_reduce", ONE_GPU)
    if program is None:
        return _absent("gpu_all_reduce", NO_TESTS)
    name = "RCCL tests" if os.path.exists("/dev/kfd") else "NCCL tests"
    asked = [program, "-b", "256M", "-e", "256M", "-g", str(count)]
    try:
        done = subprocess.run(
            asked, capture_output=True, text=True, timeout=GPU_TESTS_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return _absent("gpu_all_reduce", str(error), name)
    found = _BUS.search(done.stdout)
    if done.returncode or found is None:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["it printed nothing"]
        return _absent("gpu_all_reduce", f"{name}: {lines[-1]}", name)
    return _measured("gpu_all_reduce", float(found.group(1)) * 1e9, name)


def _measured(name: str, value: float, tool: str = "", peer: str = "") -> dict[str, Any]:
    return {"name": name, "value": value, "tool": tool, "peer": peer}


def _absent(name: str, reason: str, tool: str = "", peer: str = "") -> dict[str, Any]:
    return {"name": name, "reason": reason[:_LONGEST], "tool": tool, "peer": peer}


def disk(folder: str) -> list[dict[str, Any]]:
    """Writing and reading a file on the node's own disk."""
    try:
        with measures.scratch_file(folder, DISK_BYTES) as (_, path, written):
            read, method = measures.disk_read(path)
    except measures.NotPossible as error:
        return [_absent("disk_write", str(error)), _absent("disk_read", str(error))]
    return [
        _measured("disk_write", written, "fsync in " + folder),
        _measured("disk_read", read, method),
    ]


def rdma() -> list[dict[str, Any]]:
    """How many ports of RDMA devices are active, of all; nothing where there is none."""
    root = "/sys/class/infiniband"
    up, down = 0, []
    for device in sorted(os.listdir(root)) if os.path.isdir(root) else ():
        for port in sorted(os.listdir(f"{root}/{device}/ports")):
            with open(f"{root}/{device}/ports/{port}/state") as file:
                active = "ACTIVE" in file.read()
            up += active
            down += [] if active else [f"{device}/{port}"]
    if not up and not down:
        return []
    return [_measured("rdma_ports_down", float(len(down)), ", ".join(down)[:_LONGEST])]


def links(ring: Ring, peer: str) -> list[dict[str, Any]]:
    """Bandwidth and round trip to the next node, one pair after the other."""
    found = []
    for turn in range(ring.size):
        # Everybody waits for the word of the one before, so only one pair is at work.
        if turn == ring.rank:
            trip = measures.round_trip(ring.ahead)
            rate = measures.send_rate(ring.ahead)
            found = [_measured("link", rate, "TCP", peer), _measured("trip", trip, "TCP", peer)]
        elif turn == (ring.rank - 1) % ring.size:
            measures.answer_trips(ring.behind)
            measures.answer_rate(ring.behind)
        _barrier(ring)
    return found


def _barrier(ring: Ring) -> None:
    """Everybody has come here; twice around the ring."""
    for _ in range(2):
        if ring.rank == 0:
            ring.ahead.sendall(b"b")
            measures.received(ring.behind, 1)
        else:
            measures.received(ring.behind, 1)
            ring.ahead.sendall(b"b")


def among_nodes(connect: Callable[[], tuple[Ring, list[dict[str, Any]]]], host: str, port: int,
                size: int) -> list[dict[str, Any]]:  # fmt: skip
    """The connection to the next node, and the all-reduce."""
    if size < 2:
        return [_absent(each, ONE_NODE) for each in ("all_reduce", "link", "trip")]
    ring: Ring | None = None
    found: list[dict[str, Any]] = []
    try:
        ring, everybody = connect()
        peer = everybody[(ring.rank + 1) % size]["node"]
        found += links(ring, peer)
        gloo = all(each["torch"] for each in everybody)
        value, tool = by_gloo(ring, host, port) if gloo else by_ring(ring)
        found.append(_measured("all_reduce", value, tool))
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the reason
        known = {each["name"] for each in found}
        reason = str(error) or type(error).__name__
        found += [_absent(each, reason) for each in ("all_reduce", "link", "trip")
                  if each not in known]  # fmt: skip
    finally:
        if ring is not None:
            ring.close()
    return found


def main(secret: str) -> None:
    """Measure this node, and print the result."""
    node = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    rank, size = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
    host = os.environ.get("SLURM_LAUNCH_NODE_IPADDR", "127.0.0.1")
    port = int(os.environ["LATTICE_CHECK_PORT"])
    found = disk(os.environ.get("TMPDIR") or "/tmp")  # noqa: S108 - the job's own
    found += rdma()
    found.append(in_node())
    found += among_nodes(lambda: meet(rank, size, host, port, secret, node), host, port, size)
    sys.stdout.write(
        "lattice-check {} {}\n".format(secret, json.dumps({"node": node, "measures": found}))
    )
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
