"""What a machine is: its parts and settings, each with a value or the reason why there is none.

Stand-alone: Python 3.8 and no more. It reads `/proc` and `/sys`, changes nothing, and starts one
program (`systemctl`, for the time of the boot). The same file runs on hosts and in guests.

    {"vcpus": {"value": 8}, "boot_seconds": {"reason": "systemd does not run here"}}
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import ssl
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

_MOST_NAMES = 32
_LONGEST = 300
_RUNTIMES = (
    "apptainer", "singularity", "podman", "docker", "containerd", "enroot", "crun", "runc",
    "nvidia-ctk",
)  # fmt: skip
_SETTINGS = frozenset(
    {
        "EnableMSI",
        "EnablePCIeGen3",
        "EnablePCIERelaxedOrderingMode",
        "PeerMappingOverride",
        "EnableStreamMemOPs",
        "EnableResizableBar",
        "DynamicPowerManagement",
        "GrdmaPciTopoCheckOverride",
    }
)
"""Of NVIDIA's driver: what slows transfers down, or makes the first call slow."""
_PLACES = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_SYSTEMD_S = 0.5
_SSH_NAMES = ("sshd", "sshd-session")


class Missing(Exception):
    """The fact can't be found; the text is the reason."""


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(1 << 20)
    except OSError as error:
        raise Missing(f"{path}: {error.strerror}") from None


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _link(path: str) -> str:
    try:
        return os.path.basename(os.readlink(path))
    except OSError:
        return ""


class Machine:
    """Reads the facts of one machine; the roots are parameters for tests."""

    def __init__(self, proc: str = "/proc", sys_root: str = "/sys") -> None:
        self._proc = proc
        self._sys = sys_root

    def facts(self) -> dict[str, dict[str, Any]]:
        """Every fact by name."""
        found: dict[str, dict[str, Any]] = {}
        for name, read in sorted(self._readers().items()):
            try:
                value = read()
                found[name] = {"value": value[:_LONGEST] if isinstance(value, str) else value}
            except Missing as error:  # noqa: PERF203 - each fact fails alone
                found[name] = {"reason": str(error)[:_LONGEST]}
            except Exception as error:  # noqa: BLE001 - one file of an odd kernel is not all
                found[name] = {"reason": f"{type(error).__name__}: {error}"[:_LONGEST]}
        return found

    def _readers(self) -> dict[str, Callable[[], Any]]:
        return {
            "kernel": platform.release,
            "system": self._system,
            "machine_kind": self._kind,
            "cpu_model": self._cpu_model,
            "cpu_governor": self._governor,
            "vcpus": self._vcpus,
            "numa_nodes": self._numa,
            "memory_bytes": self._memory,
            "hugepages": self._hugepages,
            "transparent_hugepages": self._transparent,
            "root_disk": self._root_disk,
            "root_disk_bytes": lambda: self._root_size()[0],
            "root_disk_free_bytes": lambda: self._root_size()[1],
            "container_runtimes": self._runtimes,
            "gpu_count": self._gpus,
            "driver_version": self._driver,
            "driver_settings": self._driver_settings,
            "rdma_count": lambda: len(_names(self._sys + "/class/infiniband")),
            "network": self._network,
            "rdma": self._rdma,
            "uptime_seconds": self._uptime,
            "boot_seconds": self._boot,
            "ssh_started_seconds": self._ssh_started,
            "python": lambda: f"{platform.python_version()} ({ssl.OPENSSL_VERSION})",
        }

    def _system(self) -> str:
        for line in _text("/etc/os-release").splitlines():
            if line.startswith("PRETTY_NAME="):
                return line.partition("=")[2].strip('"')
        raise Missing("/etc/os-release names none")

    def _cpuinfo(self) -> str:
        return _text(self._proc + "/cpuinfo")

    def _kind(self) -> str:
        flags = re.search(r"^(?:flags|Features)\s*:(.*)$", self._cpuinfo(), re.MULTILINE)
        if flags is None:
            raise Missing("/proc/cpuinfo has no flags")
        if "hypervisor" not in flags.group(1).split():
            return "bare metal, as far as the processor shows"
        vendor = self._sys + "/class/dmi/id/sys_vendor"
        try:
            return "virtual machine, " + _text(vendor).strip()
        except Missing:
            return "virtual machine"

    def _cpu_model(self) -> str:
        found = re.search(r"^model name\s*:\s*(.+)$", self._cpuinfo(), re.MULTILINE)
        if found is None:
            raise Missing("/proc/cpuinfo names no model")
        return found.group(1).strip()

    def _governor(self) -> str:
        found = set()
        root = self._sys + "/devices/system/cpu"
        for name in _names(root):
            path = f"{root}/{name}/cpufreq/scaling_governor"
            if re.fullmatch(r"cpu\d+", name) and os.path.exists(path):
                found.add(_text(path).strip())
        if not found:
            raise Missing("the kernel does not set the clock of the processors here")
        return ", ".join(sorted(found))

    def _vcpus(self) -> int:
        return (
            len(re.findall(r"^processor\s*:", self._cpuinfo(), re.MULTILINE)) or os.cpu_count() or 1
        )

    def _numa(self) -> int:
        names = _names(self._sys + "/devices/system/node")
        return len([each for each in names if re.fullmatch(r"node\d+", each)]) or 1

    def _sizes(self) -> dict[str, int]:
        rows = re.findall(r"^(\w+):\s+(\d+)", _text(self._proc + "/meminfo"), re.MULTILINE)
        return {name: int(value) for name, value in rows}

    def _memory(self) -> int:
        sizes = self._sizes()
        if "MemTotal" not in sizes:
            raise Missing("/proc/meminfo has no MemTotal")
        return sizes["MemTotal"] * 1024

    def _hugepages(self) -> str:
        root, parts = self._sys + "/kernel/mm/hugepages", []
        for name in _names(root):
            total = int(_text(f"{root}/{name}/nr_hugepages"))
            free = int(_text(f"{root}/{name}/free_hugepages"))
            size = name.replace("hugepages-", "")
            parts.append(f"{total} of {size} ({free} free)")
        if not parts:
            raise Missing("the kernel shows no huge pages")
        return ", ".join(parts)

    def _transparent(self) -> str:
        text = _text(self._sys + "/kernel/mm/transparent_hugepage/enabled")
        chosen = re.search(r"\[(\w+)\]", text)
        return chosen.group(1) if chosen else text.strip()

    def _root_size(self) -> list[int]:
        found = os.statvfs("/")
        return [found.f_frsize * found.f_blocks, found.f_frsize * found.f_bavail]

    def _root_disk(self) -> str:
        for line in reversed(_text(self._proc + "/self/mounts").splitlines()):
            parts = line.split()
            if len(parts) > 2 and parts[1] == "/":
                device, kind = parts[0], parts[2]
                break
        else:
            raise Missing("no root is mounted")
        disk = re.sub(r"p?\d+$", "", os.path.basename(device))
        queue = f"{self._sys}/block/{disk}/queue"
        if not disk or not os.path.isdir(queue):
            return f"{kind} on {device}"
        turns = "rotating" if _text(queue + "/rotational").strip() == "1" else "not rotating"
        scheduler = re.search(r"\[([\w-]+)\]", _text(queue + "/scheduler"))
        plan = ", scheduler " + scheduler.group(1) if scheduler else ""
        return f"{kind} on {device}, {turns}{plan}"

    def _runtimes(self) -> str:
        path = os.environ.get("PATH", "") + ":" + _PLACES
        found = [each for each in _RUNTIMES if shutil.which(each, path=path)]
        if not found:
            known = ", ".join(_RUNTIMES)
            raise Missing(f"none of {known} is installed")
        return ", ".join(found)

    def _gpus(self) -> int:
        nvidia = _names(self._proc + "/driver/nvidia/gpus")
        if nvidia:
            return len(nvidia)
        root, amd = self._sys + "/class/kfd/kfd/topology/nodes", 0
        for name in _names(root):
            shown = re.search(r"^simd_count (\d+)$", _text(root + "/" + name + "/properties"),
                              re.MULTILINE)  # fmt: skip
            amd += bool(shown and int(shown.group(1)))
        if amd or _names(root):
            return amd
        raise Missing("no driver of NVIDIA or AMD is loaded")

    def _driver(self) -> str:
        for name in ("nvidia", "amdgpu"):
            version = f"{self._sys}/module/{name}/version"
            if os.path.exists(version):
                number = _text(version).strip()
                return f"{name} {number}"
            if os.path.isdir(f"{self._sys}/module/{name}"):
                return f"{name} of the kernel"
        raise Missing("no driver of NVIDIA or AMD is loaded")

    def _driver_settings(self) -> str:
        text = _text(self._proc + "/driver/nvidia/params")
        rows = re.findall(r"^(\w+): (.+)$", text, re.MULTILINE)
        shown = [f"{name}={value}" for name, value in rows if name in _SETTINGS]
        return ", ".join(shown) or "the usual ones"

    def _network(self) -> str:
        root, parts = self._sys + "/class/net", []
        for name in _names(root)[:_MOST_NAMES]:
            at = root + "/" + name
            if name == "lo" or not os.path.isdir(at):
                continue
            driver = _link(at + "/device/driver") or "virtual"
            queues = len([each for each in _names(at + "/queues") if each.startswith("rx-")])
            one = "{} {} mtu {} {} queue{}".format(
                name, driver, _text(at + "/mtu").strip(), queues, "" if queues == 1 else "s"
            )
            try:
                speed = int(_text(at + "/speed"))
                one += f" {speed} Mbit/s" if speed > 0 else ""
            except (Missing, ValueError):
                pass  # one that is down has none
            parts.append(one)
        if not parts:
            raise Missing("there is no network port but loopback")
        return "; ".join(parts)

    def _rdma(self) -> str:
        root, parts = self._sys + "/class/infiniband", []
        for name in _names(root)[:_MOST_NAMES]:
            at = root + "/" + name
            for port in _names(at + "/ports"):
                rate = _text(f"{at}/ports/{port}/rate").strip()
                layer = _text(f"{at}/ports/{port}/link_layer").strip()
                parts.append(f"{name}/{port} {layer} {rate}")
        if not parts:
            raise Missing("there is no RDMA device")
        return "; ".join(parts)

    def _uptime(self) -> float:
        return float(_text(self._proc + "/uptime").split()[0])

    def _boot(self) -> float:
        """From the start of the kernel until systemd had started everything."""
        if not os.path.isdir("/run/systemd/system"):
            raise Missing("systemd does not run here")
        asked = ["systemctl", "show", "-p", "FinishTimestampMonotonic", "--value"]
        try:
            done = subprocess.run(
                asked, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=_SYSTEMD_S,
                check=False,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Missing(f"systemctl: {error}") from None
        text = done.stdout.decode("ascii", "replace").strip()
        if not text.isdigit() or not int(text):
            raise Missing("the machine is still starting")
        return int(text) / 1e6

    def _ssh_started(self) -> float:
        """When the SSH server of this connection started, after the boot."""
        pid = os.getpid()
        found: float | None = None
        ticks = os.sysconf("SC_CLK_TCK")
        while pid > 1:
            head, _, rest = _text(f"{self._proc}/{pid}/stat").rpartition(")")
            fields = rest.split()
            if head.partition("(")[2] in _SSH_NAMES:
                found = int(fields[19]) / ticks
            pid = int(fields[1])
        if found is None:
            raise Missing("this program was not started by an SSH server")
        if found > self._uptime():
            raise Missing("its time of start is not of this boot")
        return found


def read_machine() -> dict[str, dict[str, Any]]:
    """The facts of this machine, and how long it took to read them."""
    began = time.monotonic()
    found = Machine().facts()
    found["read_seconds"] = {"value": round(time.monotonic() - began, 4)}
    return found


if __name__ == "__main__":
    sys.stdout.write(json.dumps(read_machine()) + "\n")
