"""A fresh start of the agent before it learns its first data key.

An agent that has sensitive work overwrites what it frees, which makes it slower, and that is
decided when a process starts. So an agent begins without it. It does not take its first data key.
Instead it stops in order, as for an upgrade, and executes itself again. Terminals are with the
helper, and collected logs are in the spool. The new process asks for the key again.

What was read before is gone with the old process's memory.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from lattice.base.malloc import overwrite_freed_memory, overwriting, why_never

_log = logging.getLogger(__name__)


class FreshStart:
    """Decides whether this process may hold data keys, and asks for another that may."""

    def __init__(
        self,
        *,
        is_overwriting: Callable[[], bool] = overwriting,
        why_never: Callable[[], str] = why_never,
    ) -> None:
        self.overwrites = is_overwriting()
        """Whether this process overwrites what it frees."""
        self._why_never = "" if self.overwrites else why_never()
        self._stop: Callable[[], None] = lambda: None
        self.wanted = False
        """Whether the program is to be executed again after its stop."""

    def on_wanted(self, stop: Callable[[], None]) -> None:
        """`stop` begins the orderly stop of this process."""
        self._stop = stop

    def may_hold_keys(self) -> bool:
        """False if a data key must not be taken: it will be told again, to the next process."""
        if self.overwrites:
            return True
        if not self._why_never and not self.wanted:
            _log.info("starts anew, to overwrite the memory of sensitive work")
            self.wanted = True
            self._stop()
        return False

    def lacks(self) -> tuple[str, ...]:
        """Why sensitive work is not collected on this node, for people."""
        if not self._why_never:
            return ()
        lack = "sensitive work is not collected here: freed memory can't be overwritten"
        return (f"{lack} ({self._why_never})",)

    def execute(self) -> None:
        """Execute the program again, if that is wanted."""
        if self.wanted:
            overwrite_freed_memory()
