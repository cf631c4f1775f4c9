"""The call for a terminal, and the first message on its connection. Imports little.

The message is `lattice.features.attach.model.Start`; a test compares the two.
"""

from __future__ import annotations

import json
from urllib.parse import quote

from lattice.base.call import TerminalCall
from lattice.base.errors import UsageError

PROTOCOL = "lattice.attach.v1"
LARGEST_MESSAGE_BYTES = 96 * 1024


def attach(
    reference: str,
    *,
    node: str = "",
    rank: int | None = None,
    command: tuple[str, ...] = (),
    tools: str = "",
) -> TerminalCall:
    """The call for a terminal in an allocation, or for a program with pipes."""
    return TerminalCall(
        path=f"{allocation_path(reference)}/attach",
        node=node,
        rank=rank,
        command=command,
        tools=tools,
    )


def start_text(
    call: TerminalCall,
    session: str,
    *,
    resume: bool,
    node: str,
    terminal: str,
    size: tuple[int, int],
) -> str:
    """The first message of every connection, as JSON."""
    rows, columns = size
    message = {
        "type": "start",
        "session": session,
        "resume": resume,
        "node": node,
        "rank": call.rank,
        "command": call.command,
        "terminal": terminal,
        "rows": rows,
        "columns": columns,
        "tools": call.tools,
    }
    return json.dumps(message, separators=(",", ":"))


def allocation_path(reference: str) -> str:
    """The path of an allocation. Raises `UsageError` for an invalid reference."""
    if reference.isascii() and reference.isdigit() and len(reference) < 10 and reference[0] != "0":
        return f"/v1/allocations/{reference}"
    from lattice.domain.allocation import (  # noqa: PLC0415 - large, and a bare id is the usual
        REFERENCE_HINT,
        BadReference,
        parse_reference,
    )

    try:
        name = str(parse_reference(reference))
    except BadReference as problem:
        raise UsageError(f"{problem}.", hint=REFERENCE_HINT) from None
    return f"/v1/allocations/{quote(name, safe='')}"
