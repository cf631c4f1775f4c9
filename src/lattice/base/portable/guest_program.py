"""The program in the guest of a GPU slice: prints one JSON report about the guest, and ends.

It is one file and needs only Python 3.8, so it can be copied into any guest. The agent of the host
calls it by SSH, as the forced command of a key that can do nothing else. It changes nothing. It
reads one word: after a boot the agent asks for `start`. The report then has the facts of the
machine too, by `machine_facts.py` in the same folder. The form is `docs/reference/guest-report.md`.

A driver can hang forever. So the cards are read by a child process, with a deadline. A child that
does not end keeps a lock, and until it ends no other child is started.
"""

from __future__ import annotations

import ctypes
import functools
import json
import os
import runpy
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import Any, NoReturn

VERSION = 1
STARTED = f"lattice-slice {VERSION}"
"""The first line, before anything is read: it tells a slow driver from a silent connection."""
DRIVER_S = 1.5
NO_DRIVER = "the guest has no NVIDIA driver"
BROKEN = "the NVIDIA driver of the guest does not answer"
HANGS = "the NVIDIA driver of the guest has not answered an earlier call"
NO_CARDS = "the guest has no NVIDIA GPU"
FACTS = "machine_facts.py"
_LIBRARY = "libnvidia-ml.so.1"
_LOST = (15, 16)
_MOST_CARDS = 64
_ALL_REASONS = 0xFFFFFFFF
_BLANKS = (0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF)
_BLANK_FROM, _BLANK_TO = 0x7FFFFFF0, 0x7FFFFFFF
_THROTTLE_BITS = {
    "sw_power_cap": 0x04,
    "hw_slowdown": 0x08,
    "sw_thermal": 0x20,
    "hw_thermal": 0x40,
    "power_brake": 0x80,
}
_ONE_NUMBER: tuple[tuple[str, str, tuple[int, ...], Any, float], ...] = (
    ("gpu_power_watts", "nvmlDeviceGetPowerUsage", (), ctypes.c_uint, 1e-3),
    ("gpu_power_limit_watts", "nvmlDeviceGetEnforcedPowerLimit", (), ctypes.c_uint, 1e-3),
    (
        "gpu_energy_joules_total",
        "nvmlDeviceGetTotalEnergyConsumption",
        (),
        ctypes.c_ulonglong,
        1e-3,
    ),
    ("gpu_temperature_celsius", "nvmlDeviceGetTemperature", (0,), ctypes.c_uint, 1),
    ("gpu_clock_sm_hertz", "nvmlDeviceGetClockInfo", (1,), ctypes.c_uint, 1e6),
    ("gpu_clock_memory_hertz", "nvmlDeviceGetClockInfo", (2,), ctypes.c_uint, 1e6),
    (
        "gpu_ecc_corrected_total",
        "nvmlDeviceGetTotalEccErrors",
        (0, 0),
        ctypes.c_ulonglong,
        1,
    ),
    (
        "gpu_ecc_uncorrected_total",
        "nvmlDeviceGetTotalEccErrors",
        (1, 0),
        ctypes.c_ulonglong,
        1,
    ),
    (
        "gpu_pcie_tx_bytes_per_second",
        "nvmlDeviceGetPcieThroughput",
        (0,),
        ctypes.c_uint,
        1000,
    ),
    (
        "gpu_pcie_rx_bytes_per_second",
        "nvmlDeviceGetPcieThroughput",
        (1,),
        ctypes.c_uint,
        1000,
    ),
)


class DriverError(Exception):
    """The driver's code and its own text."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class DriverLibrary:
    """NVML by ctypes."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(_LIBRARY)
        self._library.nvmlErrorString.restype = ctypes.c_char_p

    def call(self, name: str, *arguments: Any) -> None:
        """Raises `DriverError`."""
        function = getattr(self._library, name, None)
        if function is None:
            raise DriverError(13, "Function Not Found")
        code = function(*arguments)
        if code:
            text = self._library.nvmlErrorString(code) or b""
            raise DriverError(code, text.decode("utf-8", "replace"))


def cards() -> dict[str, Any]:
    """Read every card. Called in the child only: any call may hang."""
    try:
        library = DriverLibrary()
    except OSError as error:
        return {"reason": NO_DRIVER, "last_error": str(error)}
    try:
        library.call("nvmlInitWithFlags", 0)
        count = ctypes.c_uint()
        library.call("nvmlDeviceGetCount_v2", ctypes.byref(count))
    except DriverError as error:
        return {"reason": BROKEN, "last_error": "Failed to initialize NVML: " + str(error)}
    if not count.value:
        return {"reason": NO_CARDS, "last_error": ""}
    found, unnamed = [], []
    for index in range(min(count.value, _MOST_CARDS)):
        handle = ctypes.c_void_p()
        try:
            library.call("nvmlDeviceGetHandleByIndex_v2", index, ctypes.byref(handle))
            found.append(_card(library, handle))
        except DriverError as error:
            unnamed.append(str(error))
    if unnamed and not found:
        return {"reason": "the card fell off the bus", "last_error": unnamed[0]}
    return {"cards": found, "reason": "", "last_error": ""}


def _text(library: DriverLibrary, name: str, handle: Any) -> str:
    buffer = ctypes.create_string_buffer(128)
    library.call(name, handle, buffer, len(buffer))
    return buffer.value.decode("utf-8", "replace")


def _card(library: DriverLibrary, handle: Any) -> dict[str, Any]:
    card: dict[str, Any] = {
        "uuid": "",
        "name": "",
        "lost": "",
        "figures": {},
        "failed": {},
        "throttled": None,
    }
    try:
        card["uuid"] = _text(library, "nvmlDeviceGetUUID", handle)
        card["name"] = _text(library, "nvmlDeviceGetName", handle)
        _measure(library, handle, card)
    except DriverError as error:
        if error.code not in _LOST or not card["uuid"]:
            raise
        card["lost"] = str(error)
        card["figures"], card["throttled"] = {}, None
    return card


def _measure(library: DriverLibrary, handle: Any, card: dict[str, Any]) -> None:
    _attempt(card, ["gpu_utilization_percent"], functools.partial(_utilisation, library, handle))
    memory = ["gpu_memory_total_bytes", "gpu_memory_used_bytes"]
    _attempt(card, memory, functools.partial(_memory, library, handle))
    _attempt(card, [], functools.partial(_throttled, library, handle))
    for row in _ONE_NUMBER:
        _attempt(card, [row[0]], functools.partial(_one_number, library, handle, row))


def _attempt(
    card: dict[str, Any], metrics: list[str], read: Callable[[dict[str, Any]], None]
) -> None:
    try:
        read(card)
    except DriverError as error:
        if error.code in _LOST:
            raise
        for each in metrics:
            card["failed"][each] = str(error)


def _utilisation(library: DriverLibrary, handle: Any, card: dict[str, Any]) -> None:
    rates = (ctypes.c_uint * 2)()
    library.call("nvmlDeviceGetUtilizationRates", handle, rates)
    _put(card, "gpu_utilization_percent", rates[0], 1)


def _memory(library: DriverLibrary, handle: Any, card: dict[str, Any]) -> None:
    sizes = (ctypes.c_ulonglong * 3)()
    library.call("nvmlDeviceGetMemoryInfo", handle, sizes)
    _put(card, "gpu_memory_total_bytes", sizes[0], 1)
    _put(card, "gpu_memory_used_bytes", sizes[2], 1)


def _throttled(library: DriverLibrary, handle: Any, card: dict[str, Any]) -> None:
    mask = ctypes.c_ulonglong()
    library.call("nvmlDeviceGetCurrentClocksEventReasons", handle, ctypes.byref(mask))
    if mask.value < _ALL_REASONS:
        bits = sorted(_THROTTLE_BITS.items())
        card["throttled"] = [reason for reason, bit in bits if mask.value & bit]


def _one_number(
    library: DriverLibrary,
    handle: Any,
    row: tuple[str, str, tuple[int, ...], Any, float],
    card: dict[str, Any],
) -> None:
    metric, function, arguments, kind, factor = row
    value = kind()
    library.call(function, handle, *arguments, ctypes.byref(value))
    _put(card, metric, value.value, factor)


def _put(card: dict[str, Any], metric: str, value: int, factor: float) -> None:
    if value not in _BLANKS and not _BLANK_FROM <= value <= _BLANK_TO:
        card["figures"][metric] = value * factor


def read_in_child(
    read: Callable[[], dict[str, Any]],
    deadline_s: float = DRIVER_S,
    lock_name: str = "lattice-slice",
) -> dict[str, Any]:
    """The result of `read` from a child process, or why there is none within the deadline."""
    lock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        lock.bind(f"\0{lock_name}-{os.getuid()}")
    except OSError:
        lock.close()
        return {"reason": HANGS, "last_error": ""}
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        _child(read, reader, writer)
    lock.close()
    os.close(writer)
    text, until = b"", time.monotonic() + deadline_s
    try:
        while True:
            left = until - time.monotonic()
            if left <= 0 or not select.select([reader], [], [], left)[0]:
                os.kill(child, signal.SIGKILL)
                return {"reason": BROKEN, "last_error": f"no answer in {deadline_s:g} s"}
            piece = os.read(reader, 65536)
            if not piece:
                break
            text += piece
    finally:
        os.close(reader)
    os.waitpid(child, 0)
    try:
        found: dict[str, Any] = json.loads(text.decode("utf-8"))
    except ValueError:
        return {"reason": BROKEN, "last_error": "the reading ended without a result"}
    return found


def _child(read: Callable[[], dict[str, Any]], reader: int, writer: int) -> NoReturn:
    try:
        os.close(reader)
        # The connection must end when the parent does, even while this process hangs.
        null = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(null, stream)
        with os.fdopen(writer, "wb") as pipe:
            pipe.write(json.dumps(read()).encode())
    finally:
        os._exit(0)


def _lines(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(1 << 20).splitlines()
    except OSError:
        return []


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _number(path: str) -> Any:
    lines = _lines(path)
    try:
        value = int(lines[0]) if lines else -1
    except ValueError:
        return None
    return value if value >= 0 else None


def guest_figures(proc: str = "/proc") -> dict[str, Any]:
    """Processor and memory of the whole guest, in the units of the catalogue."""
    figures: dict[str, Any] = {"cpu_cores": float(os.cpu_count() or 0) or None}
    for line in _lines(proc + "/stat"):
        if line.startswith("cpu "):
            ticks = [int(each) for each in line.split()[1:9]]
            busy = sum(ticks) - ticks[3] - ticks[4]
            figures["cpu_seconds_total"] = busy / os.sysconf("SC_CLK_TCK")
    sizes = {}
    for line in _lines(proc + "/meminfo"):
        name, _, value = line.partition(":")
        if value.split():
            sizes[name] = int(value.split()[0]) * 1024
    if "MemTotal" in sizes:
        figures["memory_limit_bytes"] = sizes["MemTotal"]
        if "MemAvailable" in sizes:
            figures["memory_used_bytes"] = sizes["MemTotal"] - sizes["MemAvailable"]
        if "Cached" in sizes:
            figures["memory_cache_bytes"] = sizes["Cached"]
    return figures


def network_ports(sys_root: str = "/sys") -> list[dict[str, Any]]:
    """Interfaces with a device, and ports of RDMA devices."""
    found = []
    folder = sys_root + "/class/net"
    for name in _names(folder):
        at = folder + "/" + name
        if name == "lo" or not _names(at):
            continue
        kind = "infiniband" if _number(at + "/type") == 32 else "ethernet"
        speed = _number(at + "/speed")
        found.append(
            {
                "name": name,
                "kind": kind,
                "up": _lines(at + "/operstate")[:1] == ["up"],
                "speed_bits": speed * 1e6 if speed and speed < 10**7 else None,
                "rx_bytes": _number(at + "/statistics/rx_bytes"),
                "tx_bytes": _number(at + "/statistics/tx_bytes"),
            }
        )
    return found + rdma_ports(sys_root)


def rdma_ports(sys_root: str = "/sys") -> list[dict[str, Any]]:
    """Ports of RDMA devices."""
    found = []
    folder = sys_root + "/class/infiniband"
    for device in _names(folder):
        ports = folder + "/" + device + "/ports"
        for port in _names(ports):
            at = ports + "/" + port
            rate = (_lines(at + "/rate") or [""])[0].split()
            counted = [_number(at + "/counters/port_" + each + "_data") for each in ("rcv", "xmit")]
            state = (_lines(at + "/state") or [""])[0]
            found.append(
                {
                    "name": device + "/" + port,
                    "kind": "rdma",
                    "up": "ACTIVE" in state,
                    "speed_bits": float(rate[0]) * 1e9 if rate and rate[0].isdigit() else None,
                    # Counted in words of four bytes.
                    "rx_bytes": None if counted[0] is None else counted[0] * 4,
                    "tx_bytes": None if counted[1] is None else counted[1] * 4,
                }
            )
    return found


def start_facts() -> Any:
    """The facts of the machine; None without the file that reads them."""
    try:
        return runpy.run_path(os.path.join(os.path.dirname(__file__), FACTS))["read_machine"]()
    except (OSError, KeyError):
        return None


def report(deadline_s: float = DRIVER_S, start: bool = False) -> dict[str, Any]:
    """The whole report."""
    ports = network_ports()
    figures = guest_figures()
    began = time.monotonic()
    gpu = read_in_child(cards, deadline_s)
    if not gpu["reason"]:
        gpu["seconds"] = round(time.monotonic() - began, 4)
    uptime = (_lines("/proc/uptime") or [""])[0].split()
    for key in ("rx_bytes", "tx_bytes"):
        counts = [each[key] for each in ports if each["kind"] != "rdma"]
        if counts and None not in counts:
            figures[f"network_{key}_total"] = sum(counts)
    return {
        "version": VERSION,
        "boot_id": (_lines("/proc/sys/kernel/random/boot_id") or [""])[0],
        "uptime_seconds": float(uptime[0]) if uptime else None,
        "gpu": gpu,
        "figures": figures,
        "nics": ports,
        **({"machine": start_facts()} if start else {}),
    }


def main() -> None:
    sys.stdout.write(STARTED + "\n")
    sys.stdout.flush()
    start = os.environ.get("SSH_ORIGINAL_COMMAND", "").endswith(" start")
    sys.stdout.write(json.dumps(report(start=start)) + "\n")


if __name__ == "__main__":
    main()
