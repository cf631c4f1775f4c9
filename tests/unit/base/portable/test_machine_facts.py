"""Facts of machines: a guest with a driver, and one with nothing to read."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

from lattice.base import portable
from lattice.base.portable.machine_facts import Machine
from lattice.domain.machine_facts import FACTS, read_facts

_FILES = {
    "proc/cpuinfo": "processor\t: 0\nmodel name\t: EPYC\nflags\t: fpu hypervisor\nprocessor\t: 1\n",
    "proc/meminfo": "MemTotal:  1048576 kB\n",
    "proc/uptime": "41.5 80.0\n",
    "proc/self/mounts": "/dev/vda1 / ext4 rw 0 0\n",
    "proc/driver/nvidia/params": "EnableMSI: 1\nOther: 3\n",
    "proc/driver/nvidia/gpus/0000:01:00.0/information": "",
    "sys/module/nvidia/version": "550.54.15\n",
    "sys/block/vda/queue/rotational": "0\n",
    "sys/block/vda/queue/scheduler": "[none] mq-deadline\n",
    "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages": "512\n",
    "sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages": "500\n",
    "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
    "sys/class/net/eth0/mtu": "9000\n",
    "sys/class/net/eth0/speed": "200000\n",
    "sys/class/net/eth0/queues/rx-0/x": "",
    "sys/class/net/eth0/queues/rx-1/x": "",
    "sys/class/infiniband/mlx5_0/ports/1/rate": "400 Gb/sec (4X NDR)\n",
    "sys/class/infiniband/mlx5_0/ports/1/link_layer": "InfiniBand\n",
}


@pytest.mark.spec("SLICE-3")
def test_every_fact_of_a_guest_has_a_value_or_a_reason(tmp_path: Path) -> None:
    for name, text in _FILES.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    found = Machine(str(tmp_path / "proc"), str(tmp_path / "sys")).facts()
    facts = {each.name: each for each in read_facts(found)}
    assert facts.keys() == found.keys(), "all of them are known to the domain"
    assert all(each.text or each.reason or each.number is not None for each in facts.values())
    assert facts["vcpus"].number == 2
    assert facts["gpu_count"].number == facts["rdma_count"].number == 1
    assert facts["driver_version"].text == "nvidia 550.54.15"
    assert facts["driver_settings"].text == "EnableMSI=1"
    assert facts["hugepages"].text == "512 of 2048kB (500 free)"
    assert facts["transparent_hugepages"].text == "madvise"
    assert facts["root_disk"].text == "ext4 on /dev/vda1, not rotating, scheduler none"
    assert facts["network"].text == "eth0 virtual mtu 9000 2 queues 200000 Mbit/s"
    assert facts["rdma"].text == "mlx5_0/1 InfiniBand 400 Gb/sec (4X NDR)"
    assert facts["machine_kind"].text == "virtual machine"
    assert facts["memory_bytes"].number == 2**30
    assert facts["uptime_seconds"].number == 41.5
    assert facts["ssh_started_seconds"].reason


def test_an_empty_tree_has_reasons_and_no_numbers(tmp_path: Path) -> None:
    found = Machine(str(tmp_path), str(tmp_path)).facts()
    assert {each.name for each in read_facts(found)} <= FACTS.keys()
    for name in ("gpu_count", "driver_version", "hugepages", "network", "rdma", "memory_bytes"):
        assert found[name].keys() == {"reason"}, name


def test_stand_alone_files_need_the_standard_library_of_an_old_python_and_no_more() -> None:
    folder = Path(portable.__file__).parent
    for file in folder.glob("*.py"):
        tree = ast.parse(file.read_text(), feature_version=(3, 8))
        for node in ast.walk(tree):
            names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                first = name.partition(".")[0]
                known = first in sys.stdlib_module_names or first in {"measures", "torch"}
                assert known or name == "lattice.base.portable", (file.name, name)
