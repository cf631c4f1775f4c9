"""Ethernet ports, from `/sys/class/net`.

Only ports with a device count. If there is none (the node is itself a namespace), all except the
loopback count. InfiniBand and Slingshot ports are skipped: other modules read more about them. A
port that is down and never carried data has no cable, and is skipped.
"""

from __future__ import annotations

import os
from pathlib import Path

from lattice.domain.jobfacts import LinkFact, LinkKind
from lattice.probes.kernel_files import carries, names_in, number, total, word

_ETHERNET = "1"
"""ARPHRD_ETHER, in `type`."""
_LOOPBACK = "lo"
_MEGABIT = 1e6
_FASTEST = 10_000_000
_MARKED = "np_ecn_marked_roce_packets"


def ethernet_links(sys: Path) -> list[LinkFact]:
    """The links; the kernel does not have a port's best speed."""
    root = f"{sys}/class/net"
    ports = [name for name in names_in(root) if name != _LOOPBACK and _is_ethernet(root, name)]
    real = [name for name in ports if os.path.lexists(f"{root}/{name}/device")]
    found = (_link(sys, name) for name in real or ports)
    return [each for each in found if each is not None]


def _is_ethernet(root: str, name: str) -> bool:
    slingshot = os.path.isdir(f"{root}/{name}/device/cxi")  # noqa: PTH112
    return word(f"{root}/{name}/type") == _ETHERNET and not slingshot


def _link(sys: Path, name: str) -> LinkFact | None:
    folder = f"{sys}/class/net/{name}"
    state = word(f"{folder}/operstate")
    up = state == "up" or (state == "unknown" and word(f"{folder}/carrier") == "1")
    count = {
        each: number(f"{folder}/statistics/{each}")
        for each in ("rx_bytes", "tx_bytes", "rx_packets", "tx_packets", "rx_errors", "tx_errors")
    }
    if not state or (not up and not carries(count["rx_bytes"], count["tx_bytes"])):
        return None
    marks = _roce_marks(sys, name)
    return LinkFact(
        name=name,
        kind=LinkKind.ETHERNET,
        up=up,
        speed_bits=_speed(folder) if up else None,
        rx_bytes=count["rx_bytes"],
        tx_bytes=count["tx_bytes"],
        packets=total(count["rx_packets"], count["tx_packets"]),
        errors=total(count["rx_errors"], count["tx_errors"]),
        waits=marks,
        waits_unit="marked packets" if marks is not None else "",
        downs=downs_of(folder),
    )


def downs_of(folder: str) -> float | None:
    """How often a port of `/sys/class/net` lost its carrier."""
    counted = number(f"{folder}/carrier_down_count")
    if counted is not None:
        return counted
    changes = number(f"{folder}/carrier_changes")
    return None if changes is None else changes // 2


def _speed(folder: str) -> float | None:
    """The kernel writes -1 for a port with unknown speed."""
    megabits = number(f"{folder}/speed")
    return megabits * _MEGABIT if megabits and megabits < _FASTEST else None


def _roce_marks(sys: Path, name: str) -> float | None:
    """ECN marks on RDMA packets, which the kernel's own network stack does not count."""
    root = f"{sys}/class/infiniband"
    for device in names_in(root):
        if name in names_in(f"{root}/{device}/device/net"):
            ports = names_in(f"{root}/{device}/ports")
            return total(
                *(number(f"{root}/{device}/ports/{port}/hw_counters/{_MARKED}") for port in ports)
            )
    return None
