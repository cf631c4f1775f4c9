"""What the command `amd-smi` prints, which differs between releases.

- Any bytes are cards or `BadAmdAnswer`; no other exception escapes.
- Every figure is of the catalogue and a number that a sample may have been made of.
- Its error moves no terminal's cursor.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path

from lattice.domain.metric import CATALOGUE
from lattice.probes.amd_json import (
    BadAmdAnswer,
    figures_of,
    read_cards,
    replays_of,
    table_of,
    text_of,
)

FIXTURES = Path(__file__).parents[2] / "fixtures" / "amdsmi"
TOKENS = (
    b'{"gpu": 0, ',
    b'"gpu_data": [',
    b'"usage": {"gfx_activity": {"value": 73, "unit": "%"}}',
    b'"throttle": {"accumulation_counter": 1000, "ppt_accumulated": 4}',
    b'"link_metrics": {"links": [{"read": {"value": 1, "unit": "KB"}}]}',
    b'"max_bandwidth": {"value": 512, "unit": "Gb/s"}',
    b'"limit": {"socket_power": "750 W"}',
    b'"ecc": {"total_correctable_count": 18446744073709551615}',
    b'"error": "',
    b'"N/A"',
    b"1e308",
    b"NaN",
    b"\\u001b[2J",
)


def seeds() -> Iterator[bytes]:
    """Answers of real releases, shortened, and some that no release prints."""
    for file in sorted(FIXTURES.glob("*/*.json")):
        document = json.loads(file.read_bytes())
        cards = document.get("gpu_data", document) if isinstance(document, dict) else document
        yield json.dumps(cards[:1] if isinstance(cards, list) else cards).encode()
    yield b'WARNING: not in the group render\n[{"gpu": 0, "uuid": "\\u001b[2J"}]'
    yield b'{"error": "\\u001b[2J", "code": -1}'
    yield b'[{"gpu": 1e3}, {"gpu": -1}, {"gpu": true}, {"gpu": [{"gpu": 2}]}]'
    yield b"[" * 2000
    yield b""


def try_one(data: bytes) -> None:
    """The bytes are the answer to each question."""
    try:
        cards, failed = read_cards(data), ""
    except BadAmdAnswer as bad:
        cards, failed = {}, str(bad)
    assert failed.isprintable()
    for entry in cards.values():
        figures = figures_of(entry, entry)
        assert figures.keys() <= CATALOGUE.keys()
        replays = replays_of(entry)
        table = table_of(entry, entry)
        numbers = [*figures.values(), replays, table.xgmi_bytes, table.xgmi_link_bytes_s]
        assert all(each is None or (math.isfinite(each) and each >= 0) for each in numbers)
        if table.residency is not None:
            assert table.residency.cycles > 0
            assert min(table.residency.held.values()) >= 0
        assert isinstance(text_of(entry, ("uuid",), ("asic", "market_name")), str)
