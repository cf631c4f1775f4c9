"""Writes ROADMAP.md: the promises that no test proves yet. `just generate` runs it.

What stands there changes with docs/promises.md and with the marks of tests, never by hand.
"""

from __future__ import annotations

import re
from pathlib import Path

from scripts.spec import ROOT, proofs

PAGE = ROOT / "ROADMAP.md"
_HEAD = """# Roadmap

Drawn from [docs/promises.md](docs/promises.md) by `scripts/roadmap.py`; do not edit. These are the
promises that no test proves yet. There are no dates: a promise leaves the list when a test holds
it. `just spec` lists the tests of the others.
"""


def roadmap() -> str:
    """The page, with the sections of the promises."""
    table = proofs()
    lines = [_HEAD]
    section = ""
    for line in (ROOT / "docs" / "promises.md").read_text().splitlines():
        if line.startswith("## "):
            section = line
        elif (found := re.match(r"- ([A-Z]+-\d+) (.+)", line)) and not table[found[1]]:
            if section:
                lines += [section, ""] if lines[-1] == _HEAD else ["", section, ""]
                section = ""
            lines.append(f"- **{found[1]}** {found[2]}")
    return "\n".join(lines) + "\n"


def main(page: Path = PAGE) -> None:
    page.write_text(roadmap())


if __name__ == "__main__":
    main()
