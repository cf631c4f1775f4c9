"""Listings in the order of keys from stores with another order.

S3 promises keys in the order of their bytes, and AWS does that. Stores with real folders (such as
SeaweedFS) list the folder `a` before the file `a-b`, although `a-b` sorts before `a/x`. Their
`start-after` follows that order too. So the listing is sorted here: as a whole if it is not too
large, else level by level.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol

from lattice.domain.objects import ObjectInfo

_BELOW_SLASH = re.compile(r"[%.-]")


@dataclass(frozen=True, slots=True)
class OrderLevel:
    """The direct entries of a folder; the names of folders end with `/`."""

    objects: tuple[ObjectInfo, ...]
    folders: tuple[str, ...]


class Lists(Protocol):
    """What a store can list, in any order."""

    async def everything(self, folder: str, start: str) -> list[ObjectInfo] | None:
        """All objects below a folder, maybe without some before `start`; None if too many."""

    async def level(self, folder: str) -> OrderLevel:
        """The direct entries of a folder."""


async def in_key_order(lists: Lists, prefix: str, after: str) -> AsyncIterator[ObjectInfo]:
    """The objects that begin with `prefix` and sort after `after`."""
    async for each in _below(lists, prefix[: prefix.rfind("/") + 1], prefix, after):
        if each.key.startswith(prefix) and each.key > after:
            yield each


async def _below(lists: Lists, folder: str, prefix: str, after: str) -> AsyncIterator[ObjectInfo]:
    found = await lists.everything(folder, safe_start(folder, after))
    if found is not None:
        for each in sorted(found):
            yield each
        return
    level = await lists.level(folder)
    files = {each.key: each for each in level.objects}
    for name in sorted([*files, *level.folders]):
        if name in files:
            yield files[name]
        elif may_hold(name, prefix, after):
            async for each in _below(lists, name, prefix, after):
                yield each


def may_hold(folder: str, prefix: str, after: str) -> bool:
    """True if a key of this folder can begin with `prefix` and sort after `after`."""
    fits = folder.startswith(prefix) or prefix.startswith(folder)
    return fits and (folder > after or after.startswith(folder))


def safe_start(folder: str, after: str) -> str:
    """A key within the folder that is safe as `start-after` in either order, or an empty string.

    The two orders differ only next to a character that sorts below the slash. So it ends before the
    first of those. It ends one character earlier still, because a store with folders may take
    `start-after` for a folder of that name. It is never outside the folder: SeaweedFS before 4.48
    then lists nothing.
    """
    if not after.startswith(folder):
        return ""
    name = after[len(folder) :].split("/", 1)[0]
    name = _BELOW_SLASH.split(name, maxsplit=1)[0][:-1]
    return folder + name if name else ""
