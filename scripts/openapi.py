"""Writes tests/fixtures/rest/openapi.json, the REST description of a server with every feature.

`just generate` calls it. A test compares the file with what a server serves, so that no change of
the interface goes unseen.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from lattice.server.listeners.rest_app import describe
from tests.fakes.server import composed

TARGET = Path(__file__).resolve().parents[1] / "tests/fixtures/rest/openapi.json"


async def current() -> str:
    """The description as it is checked in: indented, keys sorted, without the version."""
    description = json.loads(describe(composed().routes))
    del description["info"]["version"]
    return json.dumps(description, indent=1, sort_keys=True) + "\n"


if __name__ == "__main__":
    TARGET.write_text(asyncio.run(current()))
