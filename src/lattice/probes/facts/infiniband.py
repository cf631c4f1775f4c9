"""InfiniBand ports, from `/sys/class/infiniband`. RoCE ports are in `ethernet`.

The kernel does not have a port's best speed. One lane of four is certainly wrong, and so is SDR or
DDR on a faster adapter. But two lanes may be the cable that was bought. So the best speed is that
of the adapter, and is set only if the port is clearly degraded.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from lattice.domain.jobfacts import LinkFact, LinkKind
from lattice.probes.kernel_files import carries, names_in, number, total, word

_RATE = re.compile(r"([0-9]{1,4}(?:\.[0-9]{1,3})?) Gb/sec \(([0-9]{1,2})X(?: ([A-Z]DR(?:10)?))?\)")
_STATE = re.compile(r"[0-9]: ([A-Z_]{2,16})", re.ASCII)
_ACTIVE = "ACTIVE"
_INFINIBAND = "InfiniBand"
_WORD_BYTES = 4
"""Data counters count in words of four bytes."""
_ERRORS = (
    "symbol_error",
    "link_error_recovery",
    "port_rcv_errors",
    "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
)
_ADAPTER_BITS: Mapping[str, float] = {
    "MT4099": 56e9,
    "MT4113": 56e9,
    "MT4115": 100e9,
    "MT4119": 100e9,
    "MT4121": 100e9,
    "MT4123": 200e9,
    "MT4129": 400e9,
    "MT4131": 800e9,
}
"""By `hca_type`: ConnectX-3 and Connect-IB, 4, 5, 6, 7 and 8."""
_SLOWEST = frozenset({"SDR", "DDR", None})


def infiniband_links(sys: Path) -> list[LinkFact]:
    """Every port that is up, or was."""
    root = f"{sys}/class/infiniband"
    found = []
    for device in names_in(root):
        ports = names_in(f"{root}/{device}/ports")
        for port in ports:
            name = device if len(ports) == 1 else f"{device}/{port}"
            link = _link(f"{root}/{device}", port, name)
            if link is not None:
                found.append(link)
    return found


def _link(device: str, port: str, name: str) -> LinkFact | None:
    folder = f"{device}/ports/{port}"
    state = _STATE.fullmatch(word(f"{folder}/state"))
    if word(f"{folder}/link_layer") != _INFINIBAND or state is None:
        return None

    def counted(counter: str) -> float | None:
        return number(f"{folder}/counters/{counter}")

    up = state[1] == _ACTIVE
    received, sent = counted("port_rcv_data"), counted("port_xmit_data")
    if not up and not carries(received, sent):
        return None
    rate = word(f"{folder}/rate")
    return LinkFact(
        name=name,
        kind=LinkKind.INFINIBAND,
        up=up,
        speed_bits=speed_of(rate) if up else None,
        best_speed_bits=_degraded(rate, word(f"{device}/hca_type")) if up else None,
        rx_bytes=None if received is None else received * _WORD_BYTES,
        tx_bytes=None if sent is None else sent * _WORD_BYTES,
        packets=total(counted("port_rcv_packets"), counted("port_xmit_packets")),
        errors=total(*(counted(each) for each in _ERRORS)),
        waits=counted("port_xmit_wait"),
        waits_unit="ticks",
        downs=counted("link_downed"),
    )


def speed_of(rate: str) -> float | None:
    """Parses `200 Gb/sec (4X HDR)`."""
    found = _RATE.fullmatch(rate)
    return float(found[1]) * 1e9 if found and float(found[1]) > 0 else None


def _degraded(rate: str, adapter: str) -> float | None:
    """The adapter's speed if the port is clearly below it, else None."""
    found, best = _RATE.fullmatch(rate), _ADAPTER_BITS.get(adapter)
    if found is None or best is None:
        return None
    return best if found[2] == "1" or found[3] in _SLOWEST else None
