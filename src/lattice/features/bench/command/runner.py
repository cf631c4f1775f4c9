"""Takes the figures of this machine, in rounds: what drifts then concerns all measures alike.

The first round is a warm-up and does not count. A measure that is not possible once is not tried
again; its reason stands in place of its samples.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from lattice.base.portable import measures
from lattice.features.bench.model import MEASURES, Measured

DISK_BYTES = 64 * measures.MIB
_TOOL_S = 60.0
_STARTED_S = 10.0
_LONGEST = 200
_FIO = {"fio_read": ("read", "1m"), "fio_random_read": ("randread", "4k")}
_ROW = re.compile(r"^\s*\d+\s+\d+\s+[\d.]+\s+([\d.]+)\s+[\d.]+\s*$", re.MULTILINE)
"""Of ib_write_bw: bytes, iterations, peak, average, messages a second."""
_RDMA = Path("/sys/class/infiniband")

Sample = tuple[float, str]
"""A figure, and what measured it."""


class Runner:
    """Collects the samples of every measure."""

    def __init__(self, folder: str, *, tools: bool = True, rdma_peer: str = "") -> None:
        """`folder`: on the disk to measure. `rdma_peer`: a host that runs `ib_write_bw`."""
        self._folder = folder
        self._tools = tools
        self._peer = rdma_peer
        self._samples: dict[str, list[float]] = {each: [] for each in MEASURES}
        self._tool: dict[str, str] = {}
        self._reasons: dict[str, str] = {}

    def run(self, repeat: int, progress: Callable[[int], None]) -> tuple[Measured, ...]:
        """The samples after so many rounds; `progress` is called after each."""
        for number in range(repeat + 1):
            self._round(counts=number > 0)
            progress(number)
        return tuple(
            Measured(
                name=name,
                samples=() if name in self._reasons else tuple(samples),
                tool=self._tool.get(name, ""),
                reason=self._reasons.get(name, ""),
            )
            for name, samples in self._samples.items()
        )

    def _round(self, *, counts: bool) -> None:
        plain: dict[str, Callable[[], Sample]] = {
            "memory_copy": lambda: (measures.memory_copy(), ""),
            "cpu_hash": lambda: (measures.hash_rate(), "OpenSSL"),
            "cpu_loop": lambda: (measures.loop_rate(), ""),
            "loopback": lambda: (measures.loopback_rate(), ""),
            "loopback_trip": lambda: (measures.loopback_trip(), ""),
            "rdma_write": lambda: (self._rdma_write(), "ib_write_bw"),
        }
        for name, read in plain.items():
            self._take(name, read, counts=counts)
        with contextlib.ExitStack() as stack:
            path = ""

            def write() -> Sample:
                nonlocal path
                file = measures.scratch_file(self._folder, DISK_BYTES)
                _, path, rate = stack.enter_context(file)
                return rate, f"fsync in {self._folder}"

            self._take("disk_write", write, counts=counts)
            self._take("disk_read", lambda: _read(path), counts=counts)
            for name in _FIO:
                self._take(name, lambda each=name: self._fio(each, path), counts=counts)  # type: ignore[misc]

    def _take(self, name: str, read: Callable[[], Sample], *, counts: bool) -> None:
        if name in self._reasons:
            return
        try:
            value, self._tool[name] = read()
        except (measures.NotPossible, OSError) as error:
            self._reasons[name] = (str(error) or type(error).__name__)[:_LONGEST]
            return
        if counts:
            self._samples[name].append(value)

    def _fio(self, name: str, path: str) -> Sample:
        kind, block = _FIO[name]
        program = self._program("fio")
        if not path:
            raise measures.NotPossible("there is no file to read")
        asked = [
            program, "--readonly", "--name=lattice", f"--filename={path}", f"--rw={kind}",
            f"--bs={block}", "--direct=1", "--ioengine=libaio", "--iodepth=16", "--time_based",
            "--runtime=1", f"--size={DISK_BYTES}", "--output-format=json",
        ]  # fmt: skip
        text = _printed(asked)
        try:
            job = json.loads(text[text.index("{") :])["jobs"][0]["read"]
            value = float(job["iops"] if name == "fio_random_read" else job["bw_bytes"])
        except (ValueError, LookupError, TypeError):
            raise measures.NotPossible("fio printed no figures") from None
        if value <= 0:
            raise measures.NotPossible("fio read nothing")
        return value, "fio, O_DIRECT, 16 at once"

    def _rdma_write(self) -> float:
        program = self._program("ib_write_bw")
        devices = sorted(each.name for each in _RDMA.iterdir()) if _RDMA.is_dir() else []
        if not devices:
            raise measures.NotPossible("there is no RDMA device")
        asked = [program, "-d", devices[0], "--report_gbits", "-D", "1"]
        if self._peer:
            return _gbits(_printed([*asked, self._peer]))
        with _serving(asked):
            return _gbits(_printed([*asked, "localhost"]))

    def _program(self, name: str) -> str:
        if not self._tools:
            raise measures.NotPossible("not wanted: --no-tools")
        found = shutil.which(name)
        if found is None:
            raise measures.NotPossible(f"{name} is not installed")
        return found


def _read(path: str) -> Sample:
    if not path:
        raise measures.NotPossible("there is no file to read")
    return measures.disk_read(path)


def _printed(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TOOL_S, check=False)
    except subprocess.TimeoutExpired:
        raise measures.NotPossible(f"{Path(command[0]).name} took over {_TOOL_S:g} s") from None
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines() or [f"exit {done.returncode}"]
        raise measures.NotPossible(f"{Path(command[0]).name}: {lines[-1]}")
    return done.stdout


def _gbits(text: str) -> float:
    rows = _ROW.findall(text)
    if not rows:
        raise measures.NotPossible("ib_write_bw printed no figures")
    return float(rows[-1]) * 1e9 / 8


@contextlib.contextmanager
def _serving(command: list[str]) -> Iterator[None]:
    """A server of `ib_write_bw` on this machine, for one client."""
    quiet = subprocess.DEVNULL
    server = subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet)
    try:
        time.sleep(0.5)  # it prints nothing that would show when it listens
        yield
    finally:
        server.kill()
        server.wait(_STARTED_S)


class CpuPressure:
    """For how long processes waited for a processor, since this object was made."""

    def __init__(self, file: Path = Path("/proc/pressure/cpu")) -> None:
        self._file = file
        self._began_s, self._before_us = time.monotonic(), self._read()

    def waited(self) -> dict[str, Any]:
        """The share of the time in percent, as a fact."""
        now_us, passed_s = self._read(), time.monotonic() - self._began_s
        if now_us is None or self._before_us is None or passed_s <= 0:
            return {"reason": "the kernel does not count it (/proc/pressure/cpu)"}
        return {"value": min(100.0, (now_us - self._before_us) / 1e4 / passed_s)}

    def _read(self) -> int | None:
        try:
            found = re.search(r"^some .*total=(\d+)$", self._file.read_text(), re.MULTILINE)
        except OSError:
            return None
        return int(found[1]) if found else None


def here() -> str:
    """The name of this machine, without its domain."""
    return os.environ.get("SLURMD_NODENAME") or os.uname().nodename.partition(".")[0]
