"""The program of a check job, as its script starts it: real processes that meet over TCP."""

from __future__ import annotations

import base64
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lattice.base.portable import measures, node_check
from lattice.domain.node_check import MEASURES, read_output
from lattice.features.checks.service.script import check_script

SECRET = "0f" * 16


def program() -> str:
    found = re.search(r"LATTICE_CHECK='([^']+)'", check_script(SECRET).decode())
    assert found is not None
    # Smaller than on a node: what is checked here is that it is right, not how fast it is.
    small = (
        "import re\nmeasured = module.__dict__\nmeasured['MIB'] = 16384\nmeasured['PIECE'] = 4096\n"
    )
    text = base64.b64decode(found[1]).decode()
    return text.replace('sys.modules["measures"]', small + 'sys.modules["measures"]')


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def run(count: int, tmp_path: Path) -> str:
    port = str(free_port())
    started = [
        subprocess.Popen(
            [sys.executable, "-I", "-c", program(), SECRET],
            env={
                "PATH": os.defpath,
                "SLURM_PROCID": str(rank),
                "SLURM_NTASKS": str(count),
                "SLURMD_NODENAME": f"n{rank + 1}",
                "SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1",
                "LATTICE_CHECK_PORT": port,
                "TMPDIR": str(tmp_path),
            },
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(count)
    ]
    return "".join(each.communicate(timeout=120)[0] for each in started)


@pytest.mark.spec("OPS-10")
def test_three_nodes_measure_their_disks_links_and_an_all_reduce(tmp_path: Path) -> None:
    found = read_output(run(3, tmp_path), SECRET)
    assert sorted(found) == ["n1", "n2", "n3"]
    for number, measured in enumerate(found[each] for each in sorted(found)):
        by_name = {each.name: each for each in measured}
        assert by_name.keys() <= MEASURES.keys()
        for name in ("disk_read", "disk_write", "link", "trip", "all_reduce"):
            assert (by_name[name].value or 0) > 0, by_name[name]
        assert by_name["link"].peer == f"n{(number + 1) % 3 + 1}"
        assert by_name["all_reduce"].tool == node_check.RING
        assert by_name["gpu_all_reduce"].reason == node_check.ONE_GPU
    assert list(tmp_path.iterdir()) == []


def test_one_node_has_no_other_to_reduce_with(tmp_path: Path) -> None:
    (measured,) = read_output(run(1, tmp_path), SECRET).values()
    reasons = {each.name: each.reason for each in measured if each.value is None}
    assert reasons["all_reduce"] == reasons["link"] == node_check.ONE_NODE


def test_a_folder_that_takes_no_file_is_a_reason(tmp_path: Path) -> None:
    (first, second) = node_check.disk(str(tmp_path / "gone"))
    assert first["reason"] == second["reason"]
    assert "no file can be written" in first["reason"]


def pair() -> tuple[node_check.Ring, node_check.Ring]:
    (a, b), (c, d) = socket.socketpair(), socket.socketpair()
    return node_check.Ring(0, 2, a, d), node_check.Ring(1, 2, c, b)


def test_an_all_reduce_with_a_wrong_result_is_not_a_figure() -> None:
    first, second = pair()
    honest = second.exchange

    def spoilt(piece: bytes) -> bytes:
        return honest(bytes(len(piece)))

    second.exchange = spoilt  # type: ignore[method-assign]
    with ThreadPoolExecutor(2) as pool:
        parts = [pool.submit(node_check.ring_reduce, each, 4096) for each in (first, second)]
        with pytest.raises(measures.NotPossible, match="wrong result"):
            parts[0].result(60)
        with pytest.raises(measures.NotPossible):
            parts[1].result(60)
    first.close()
    second.close()


def test_a_stranger_without_the_secret_is_sent_away() -> None:
    port = free_port()
    answers: list[str] = []

    def meet(rank: int) -> None:
        ring, everybody = node_check.meet(rank, 2, "127.0.0.1", port, SECRET, f"n{rank}")
        answers.append(",".join(each["node"] for each in everybody))
        ring.close()

    def knock() -> None:
        for _ in range(100):
            try:
                with socket.create_connection(("127.0.0.1", port), timeout=5) as stranger:
                    stranger.sendall(b'{"secret": "guessed", "rank": 1}\n')
                    assert stranger.recv(1) == b""
                    return
            except ConnectionRefusedError:
                threading.Event().wait(0.05)

    first = threading.Thread(target=meet, args=(0,))
    first.start()
    knock()
    meet(1)
    first.join(60)
    assert answers == ["n0,n1", "n0,n1"]


_PRINTED = """\
# nThread 1 nGpus 2 minBytes 268435456
   268435456      67108864     float     sum      -1   2264.2  118.55  118.55      0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 118.553
"""


@pytest.mark.spec("OPS-10")
def test_the_tests_of_nccl_are_run_where_they_are_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def installed(text: str) -> None:
        tool = tmp_path / "all_reduce_perf"
        tool.write_text(text)
        tool.chmod(0o755)

    monkeypatch.setenv("PATH", f"{tmp_path}:{os.defpath}")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert node_check.in_node()["reason"] == node_check.NO_TESTS
    installed(f"#!/bin/sh\ncat <<'END'\n{_PRINTED}END\n")
    found = node_check.in_node()
    assert (found["value"], found["tool"]) == (118.553e9, "NCCL tests")
    installed("#!/bin/sh\necho 'Test NCCL failure common.cu:961' >&2\nexit 3\n")
    assert node_check.in_node()["reason"] == "NCCL tests: Test NCCL failure common.cu:961"


def test_what_is_unexpected_is_the_reason() -> None:
    def broken() -> tuple[node_check.Ring, list[dict[str, object]]]:
        raise OSError("no route to host")

    connect: Callable[[], tuple[node_check.Ring, list[dict[str, object]]]] = broken
    found = node_check.among_nodes(connect, "127.0.0.1", 1, 2)
    assert {each["reason"] for each in found} == {"no route to host"}
