"""A session assembled: the SDK's link, and this process's terminal or pipes around it.

A person waits for a prompt. So the connection is opened and the request is sent before anything
large is loaded, which happens while the server and the node work.
"""

# ruff: noqa: PLC0415 - see the module's docstring

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from lattice.base.call import TerminalCall
from lattice.base.clock import Clock
from lattice.client.blocking_client import SyncClient
from lattice.client.dialler import new_session
from lattice.features.attach.terminal_call import start_text

if TYPE_CHECKING:
    from lattice.cli.terminal import LocalTerminal

_KEYS, _SCREEN, _ERRORS = 0, 1, 2
_SIZE_OF_NONE = (24, 80)


def attach(
    call: TerminalCall,
    client: SyncClient,
    clock: Clock,
    *,
    term: str,
    quiet: bool,
    warn: Callable[[str], None],
) -> int:
    """Connect this terminal, or pipes if there is none, to the session. Returns the exit code."""
    session = new_session()
    dialler = client.dialler(call, clock=clock)
    wire = dialler.dial_first(_load_terminal)
    local = _local_terminal()
    terminal = (term or "dumb") if local is not None else ""
    size = local.size() if local is not None else _SIZE_OF_NONE
    wire.send_text(
        start_text(call, session, resume=False, node=call.node, terminal=terminal, size=size)
    )
    from lattice.cli.attached import AttachedPipes, AttachedTerminal
    from lattice.client.terminal import TerminalLink

    link = TerminalLink(call, dialler, clock, terminal=terminal, size=size, session=session)
    link.adopt(wire)
    gc.enable()
    if local is not None:
        return AttachedTerminal(link, local, clock, quiet=quiet, warn=warn).run()
    descriptors = (_KEYS if _is_open(_KEYS) else None, _SCREEN, _ERRORS)
    return AttachedPipes(link, clock, quiet=quiet, warn=warn, descriptors=descriptors).run()


def _load_terminal() -> None:
    import lattice.cli.terminal  # noqa: F401 - for the first message


def _local_terminal() -> LocalTerminal | None:
    """This process's terminal; None if it has none."""
    from lattice.cli.terminal import LocalTerminal

    has_terminal = os.isatty(_KEYS) and os.isatty(_SCREEN)
    return LocalTerminal(_KEYS, _SCREEN) if has_terminal else None


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True
