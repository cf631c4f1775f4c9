"""Which card Slurm means: its GRES index, the device file of that index, the card's UUID. Pure.

Slurm numbers the devices of a node in the order of its `gres.conf`. With `File=/dev/nvidia[0-7]`
the index is the number in the file's name, which is NVML's *minor number*, not its index. A site
whose `gres.conf` has another order, or MIG instances, says so in the agent's configuration.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypeAlias

from lattice.probes.nvidia_cards import Card, Instance

NO_SUCH_CARD = "Slurm gave the job a card that NVML does not know"
NOT_LISTED = "Slurm gave the job a device that `gpus.devices` does not name"
MIG_NOT_LISTED = "MIG is on: `gpus.devices` must say which instance each of Slurm's numbers is"

_FILE = re.compile(r"/(?:[^/]+/)*nvidia(\d{1,4})", re.ASCII)

Chosen: TypeAlias = Card | Instance | str
"""A card, an instance, or why it is neither."""


def chosen(index: int, devices: Sequence[str], cards: Sequence[Card]) -> Chosen:
    """What stands behind one of Slurm's numbers.

    `devices` names each by file (`/dev/nvidia3`) or by UUID; empty: the number is the file's.
    """
    if not devices:
        if any(card.mig for card in cards):
            # The number may mean an instance: a neighbour's figures must not be shown for it.
            return MIG_NOT_LISTED
        return _by_minor(index, cards)
    if index >= len(devices):
        return NOT_LISTED
    name = devices[index]
    if file := _FILE.fullmatch(name):
        return _by_minor(int(file[1]), cards)
    return _by_uuid(name, cards)


def _by_minor(minor: int, cards: Sequence[Card]) -> Chosen:
    return next((card for card in cards if card.uuid and card.minor == minor), NO_SUCH_CARD)


def _by_uuid(uuid: str, cards: Sequence[Card]) -> Chosen:
    for card in cards:
        if card.uuid and card.uuid == uuid:
            return card
        for instance in card.instances:
            if instance.uuid == uuid:
                return instance
    return NO_SUCH_CARD
