"""AMD's cards for a test: a compiled `libamd_smi.so` that answers from a text file."""

from __future__ import annotations

from pathlib import Path

from lab.command import run

SOURCE = Path(__file__).parents[1] / "tests" / "fakes" / "amdsmi" / "amdsmi.c"
LIBRARY = "libamd_smi.so"
STATE = "AMDSMI_STATE"
"""The variable that names the file which says what the library answers."""
DRIVER_NOT_LOADED = 34

_CARD: dict[str, object] = {
    "name": "AMD Instinct MI300X",
    "utilization": 73,
    "memory_total": 192 * 2**30,
    "memory_used": 2**30,
    "temperature": 55,
    "clock": 2100,
    "clock_memory": 1300,
    "power": 412,
    "power_cap": 750_000_000,
    "energy": 1_000_000,
    "ecc_corrected": 0,
    "pcie_replays": 0,
    "ecc_uncorrected": 0,
    "table": 1,
    "cycles": 1000,
    "prochot": 0,
    "ppt": 400,
    "socket": 20,
    "regulator": 0,
    "hbm": 0,
    "xgmi_width": 16,
    "xgmi_speed": 32,
    "xgmi_read": 1000,
    "xgmi_written": 500,
    "xgmi_links": "XUUUUUUU",
    "xgmi_corrected": 4,
    "xgmi_uncorrected": 0,
    "compute": "SPX",
    "memory_mode": "NPS1",
}
"""A card at work."""


def amd_uuid_of(card: int) -> str:
    """Of the card with this index."""
    return f"{card:02x}ff74a1-0000-1000-80f1-9d5fbd6b0c12"


def build_amd_library(folder: Path) -> Path:
    """The compiled library in this folder."""
    library = folder / LIBRARY
    words = ("-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror")
    run(["cc", *words, "-o", str(library), str(SOURCE)])
    return library


class AmdState:
    """The file: cards at work, and what differs from that."""

    def __init__(self, file: Path, cards: int = 2) -> None:
        self.file = file
        self._lines = [f"gpus {cards}"]
        self._lines += [f"gpu * {key} {value}" for key, value in _CARD.items()]
        for card in range(cards):
            self.card(card, uuid=amd_uuid_of(card), bdf=f"0000:{0xC1 - card:02x}:00.0")
        self._write()

    def set(self, **values: int) -> None:
        """`init`, `hang`, `gpus`, `release`."""
        self._lines += [f"{name} {value}" for name, value in values.items()]
        self._write()

    def card(self, card: int | str, **facts: object) -> None:
        """Of one card, or with `*` of all."""
        self._lines += [f"gpu {card} {key} {value}" for key, value in facts.items()]
        self._write()

    def _write(self) -> None:
        self.file.write_text("\n".join(self._lines) + "\n")
