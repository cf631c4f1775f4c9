"""Records as lines of JSON: one object for each line of the job. Pure."""

from __future__ import annotations

import json

from lattice.base.escapes import plain
from lattice.features.logs.model import LogBlock


def json_lines(block: LogBlock) -> str:
    """One object for each line, with its number and its unchanged text."""
    time = block.time.isoformat().replace("+00:00", "Z")
    before = json.dumps(
        {
            "type": "line",
            "node": block.node,
            "stream": block.stream.value,
            "source": block.source,
            "rank": block.rank,
        }
    )[:-1]
    after = json.dumps({"time": time, "late": block.late})[1:-1]
    rest = ', "unfinished": true}\n' if block.unfinished else "}\n"
    return "".join(
        f'{before}, "seq": {seq}, {after}, "text": "{text}"{rest}'
        for seq, text in enumerate(_texts(block.text), block.seq)
    )


def _texts(text: str) -> list[str]:
    """Its lines, escaped for JSON strings."""
    if "\\" not in text and plain(text):
        # All at once: only a line feed becomes a backslash and an n.
        lines = json.dumps(text, ensure_ascii=False)[1:-1].split("\\n")
    else:
        lines = [_text(line)[1:-1] for line in text.split("\n")]
    return lines if lines[-1] else lines[:-1]


def _text(line: str) -> str:
    # Fully escaped if it could control a terminal.
    return json.dumps(line, ensure_ascii=not line.isprintable())
