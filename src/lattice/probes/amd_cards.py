"""AMD's cards of a node, and which of them each of Slurm's numbers means.

Slurm numbers the devices of a node in the order of its `gres.conf`. With
`File=/dev/dri/renderD[128-135]` the index is the rank of the render device. A card's render device
is found by its PCI address. A card in several partitions (CPX, DPX, QPX) has several devices for
one address. The site must then name the device of each of Slurm's numbers by UUID.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from lattice.base.text import inert
from lattice.probes.kernel_files import names_in
from lattice.probes.nvidia import NOT_LISTED
from lattice.probes.probe import ProbeFailed

NO_SUCH_CARD = "Slurm gave the job a card that amd-smi does not know"
TWICE = "two cards of this node have the same UUID"
PARTITIONED = "a card is in partitions: `gpus.devices` must say which each of Slurm's numbers is"

_FILE = re.compile(r"/dev/dri/renderD(\d{1,4})", re.ASCII)
_WHOLE = frozenset({"", "SPX", "N/A"})
_LONGEST_NAME = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class AmdCard:
    """One card, or one partition of a card, at this reading."""

    handle: int
    uuid: str
    name: str = ""
    render: int | None = None
    """Of its render device, `/dev/dri/renderD128`; None if unknown or shared by partitions."""
    partitioned: bool = False
    lost: str = ""


AmdChosen: TypeAlias = AmdCard | str


def chosen(index: int, devices: Sequence[str], cards: Sequence[AmdCard]) -> AmdChosen:
    """The card of one of Slurm's numbers, or why there is none.

    `devices` names each by file (`/dev/dri/renderD128`) or by UUID.
    """
    if devices and index >= len(devices):
        return NOT_LISTED
    if devices:
        file = _FILE.fullmatch(devices[index])
        if not file:
            return next((each for each in cards if each.uuid == devices[index]), NO_SUCH_CARD)
        render = int(file[1])
        return next((each for each in cards if each.render == render), NO_SUCH_CARD)
    if any(each.partitioned for each in cards):
        # The number may mean a partition: values of another job must not be shown for it.
        return PARTITIONED
    ranked = sorted((each for each in cards if each.render is not None), key=_render)
    if len(ranked) != len(cards) or index >= len(ranked):
        return NO_SUCH_CARD
    return ranked[index]


def _render(card: AmdCard) -> int:
    return -1 if card.render is None else card.render


def with_lost(listed: Sequence[AmdCard], known: Sequence[AmdCard]) -> tuple[AmdCard, ...]:
    """All cards: a known one that is no longer listed is lost, not gone, since its job must know.

    Raises `ProbeFailed` if two have the same UUID.
    """
    cards = [*listed, *(replace(each, lost="it is not listed any more") for each in known)]
    count = Counter(each.uuid for each in cards)
    if any(uuid and many > 1 for uuid, many in count.items()):
        raise ProbeFailed(TWICE)
    return tuple(cards)


def met(
    handle: int, uuid: str, name: str, *, compute: str, memory: str, address: str, pci: str
) -> AmdCard:
    """A card by what amd-smi reports of it. `address`: its PCI address; empty: not known.

    `compute` and `memory` are its modes, as `SPX` and `NPS1`. `pci` is the folder of devices.
    """
    partitioned = compute not in _WHOLE
    modes = ", ".join(each for each in (compute, memory) if each) if partitioned else ""
    return AmdCard(
        handle=handle,
        uuid=inert(uuid)[:_LONGEST_NAME],
        name=inert(f"{name} ({modes})" if modes else name)[:_LONGEST_NAME],
        render=None if partitioned or not address else _render_of(f"{pci}/{address}/drm"),
        partitioned=partitioned,
    )


def _render_of(folder: str) -> int | None:
    renders = [each.removeprefix("renderD") for each in names_in(folder) if "renderD" in each]
    return int(renders[0]) if len(renders) == 1 and renders[0].isdigit() else None
