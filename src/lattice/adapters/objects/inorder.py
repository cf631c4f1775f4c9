"""Listings in the order of keys from stores that keep another one.

S3 promises keys in the order of their bytes, and AWS keeps it. Stores that keep objects in folders
(SeaweedFS among them) list the folder `a` before the file `a-b`, although `a-b` sorts before
`a/x`; and what they skip for `start-after` follows that order too. So what is listed is put in
order here: as a whole where it is not too much to hold, else level by level.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol

from lattice.domain.objects import ObjectInfo

_BELOW_SLASH = re.compile(r"[%.-]")


@dataclass(frozen=True, slots=True)
class Level:
    """What lies directly in a folder; the names of folders end with `/`."""

    objects: tuple[ObjectInfo, ...]
    folders: tuple[str, ...]


class Lists(Protocol):
    """What a store can list, in whatever order."""

    async def everything(self, folder: str, start: str) -> list[ObjectInfo] | None:
        """All below a folder, but for some that sort before `start`; None if it is too much."""

    async def level(self, folder: str) -> Level:
        """What lies directly in a folder."""


async def in_key_order(lists: Lists, prefix: str, after: str) -> AsyncIterator[ObjectInfo]:
    """What begins with `prefix` and sorts after `after`."""
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
    """A key within the folder that may be sent as `start-after` in either order, or nothing.

    The two orders differ only beside a character that sorts below the slash, so it ends before
    the first of those; and a letter earlier, because a folder store takes `start-after` for a
    folder of that very name as well. It is never outside the folder: SeaweedFS before 4.48 then
    lists nothing.
    """
    if not after.startswith(folder):
        return ""
    name = after[len(folder) :].split("/", 1)[0]
    name = _BELOW_SLASH.split(name, maxsplit=1)[0][:-1]
    return folder + name if name else ""
