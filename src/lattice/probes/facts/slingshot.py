"""Slingshot ports, from `/sys/class/cxi`: what the Cassini adapter counts.

Each file of `telemetry` is a count and when it was taken, `90049@1697554302.123456789`. Pauses are
counted in cycles of 1 GHz, which is nanoseconds.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from lattice.domain.jobfacts import LinkFact, LinkKind
from lattice.probes.facts.ethernet import downs_of
from lattice.probes.facts.tree import carries, names_in, total, word

_COUNT = re.compile(r"([0-9]{1,18})@[0-9]{1,12}\.[0-9]{1,9}", re.ASCII)
_SPEED = re.compile(r"[A-Za-z]{2}_?([0-9]{2,3})G", re.ASCII)
_STATES = {"up": True, "down": False}
_PAUSED = (*(f"hni_rx_paused_{each}" for each in range(8)), "hni_rx_paused_std")
_FIRST_BITS = 200e9


def slingshot_links(sys: Path) -> list[LinkFact]:
    """Every adapter that is up, or was."""
    root = f"{sys}/class/cxi"
    found = (_link(sys, f"{root}/{name}/device", name) for name in names_in(root))
    return [each for each in found if each is not None]


def _link(sys: Path, device: str, name: str) -> LinkFact | None:
    second = os.path.isdir(f"{device}/port/0")  # noqa: PTH112
    state = _STATES.get(word(f"{device}/port/{'0/link/state' if second else 'link'}").lower())

    def counted(counter: str) -> float | None:
        return count_of(word(f"{device}/telemetry/{counter}"))

    received, sent = counted("hni_sts_rx_ok_octets"), counted("hni_sts_tx_ok_octets")
    if state is None or (not state and not carries(received, sent)):
        return None
    waits = total(*(counted(each) for each in _PAUSED))
    return LinkFact(
        name=name,
        kind=LinkKind.SLINGSHOT,
        up=state,
        speed_bits=speed_of(word(f"{device}/port/{'0/link/speed' if second else 'speed'}"))
        if state
        else None,
        # The second generation also stands behind switches of the first.
        best_speed_bits=None if second else _FIRST_BITS,
        rx_bytes=received,
        tx_bytes=sent,
        errors=counted("hni_pcs_uncorrected_cw"),
        waits=waits,
        waits_unit="ns" if waits is not None else "",
        downs=_downs(sys, name),
    )


def count_of(text: str) -> float | None:
    """Of `90049@1697554302.123456789`."""
    found = _COUNT.fullmatch(text)
    return float(found[1]) if found else None


def speed_of(text: str) -> float | None:
    """Of `BS_200G` or `bs200G`."""
    found = _SPEED.fullmatch(text)
    return float(found[1]) * 1e9 if found and int(found[1]) else None


def _downs(sys: Path, name: str) -> float | None:
    root = f"{sys}/class/net"
    for interface in names_in(root):
        if name in names_in(f"{root}/{interface}/device/cxi"):
            return downs_of(f"{root}/{interface}")
    return None
