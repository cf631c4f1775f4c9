"""Records as lines of JSON: each line of the job an object of its own. Pure."""

from __future__ import annotations

import json

from lattice.base.escapes import plain
from lattice.features.logs.model import LogBlock


def json_lines(block: LogBlock) -> str:
    """One object a line, with its number; its text is what the job wrote, nothing folded."""
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
    """Its lines, as they stand between quotes."""
    if "\\" not in text and plain(text):
        # All at once: a line feed is the only thing that becomes a backslash and an n.
        lines = json.dumps(text, ensure_ascii=False)[1:-1].split("\\n")
    else:
        lines = [_text(line)[1:-1] for line in text.split("\n")]
    return lines if lines[-1] else lines[:-1]


def _text(line: str) -> str:
    # Escaped throughout where anything in it could drive a terminal.
    return json.dumps(line, ensure_ascii=not line.isprintable())
