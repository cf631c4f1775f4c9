"""How often a process looks for garbage.

What it holds when it has begun it holds to its end; to look through that again and again takes
time and, in a process that forks, memory.
"""

from __future__ import annotations

import gc

MANY = 50_000
"""A page about some hundred nodes makes as many objects, which go without being looked for. With
the interpreter's 700 a fifth of the time that such a page takes is spent on looking."""
_OLDER = 20


def settle(young: int | None = None) -> None:
    """Never look at what is there now; at what comes, once there are so many more of it."""
    gc.collect()
    gc.freeze()
    if young is not None:
        gc.set_threshold(young, _OLDER, _OLDER)
