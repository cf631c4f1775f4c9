from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lattice.adapters.objects.inorder import OrderLevel, in_key_order, may_hold, safe_start
from lattice.domain.objects import ObjectInfo

THEN = datetime(2026, 1, 2, tzinfo=UTC)
NAMES = st.text(alphabet="ab-.%_0", min_size=1, max_size=3)
KEYS = st.builds("/".join, st.lists(NAMES, min_size=1, max_size=4))


class FolderLists:
    """Lists as a store of folders does: by part, and so does it skip; never more than `most`."""

    def __init__(self, keys: set[str], most: int) -> None:
        self._keys = sorted(keys, key=lambda key: key.split("/"))
        self._most = most

    async def everything(self, folder: str, start: str) -> list[ObjectInfo] | None:
        assert start.startswith(folder) or not start, "older SeaweedFS lists nothing then"
        found = []
        for key in self._keys:
            if not key.startswith(folder):
                continue
            # Whatever lies in a folder of the very name of `start` is skipped too.
            parts, skipped = key.split("/"), start.split("/")
            if not start or (parts > skipped and parts[: len(skipped)] != skipped):
                found.append(ObjectInfo(key, 1, THEN))
        return found if len(found) <= self._most else None

    async def level(self, folder: str) -> OrderLevel:
        below = [key for key in self._keys if key.startswith(folder)]
        files = [key for key in below if "/" not in key[len(folder) :]]
        folders = {folder + key[len(folder) :].split("/")[0] + "/" for key in below}
        return OrderLevel(
            tuple(ObjectInfo(key, 1, THEN) for key in files),
            tuple(each for each in folders if any(key.startswith(each) for key in below)),
        )


@given(st.sets(KEYS, max_size=25), KEYS, st.integers(0, 12), st.integers(0, 6), st.booleans())
@example({"a/x", "a-b", "a.b", "a0"}, "a-b", 0, 0, True)
@example({"a/x", "a/y", "a-b"}, "a-b", 1, 1, True)
def test_any_store_lists_in_the_order_of_keys(
    keys: set[str], after: str, most: int, cut: int, follow: bool
) -> None:
    prefix, after = after[:cut], after if follow else ""
    # No key is the folder of another.
    keys = {key for key in keys if not any(each.startswith(f"{key}/") for each in keys)}

    async def listed() -> list[str]:
        lists = FolderLists(keys, most)
        return [each.key async for each in in_key_order(lists, prefix, after)]

    expected = sorted(key for key in keys if key.startswith(prefix) and key > after)
    assert asyncio.run(listed()) == expected


@pytest.mark.parametrize(
    ("after", "start"),
    [
        ("a/b/chunk_000123.log.zst", "a/b/chunk_00012"),
        ("a/b/c/d", ""),
        ("a/b/cd/e", "a/b/c"),
        ("a/b/-x", ""),
        ("a/c", ""),
        ("", ""),
    ],
)
def test_where_a_listing_may_begin(after: str, start: str) -> None:
    assert safe_start("a/b/", after) == start


@pytest.mark.parametrize(
    ("folder", "prefix", "after", "held"),
    [
        ("a/", "", "", True),
        ("a/", "a/b", "", True),
        ("a/", "b", "", False),
        ("a/b/", "a/", "a/b/c", True),
        ("a/b/", "a/", "a/b", True),
        ("a/b/", "a/", "a/c", False),
        ("a/b/", "a/", "a/b0", False),
        ("a/b/", "a/", "a/b-c", True),
    ],
)
def test_folders_that_hold_nothing_wanted_are_left_out(
    folder: str, prefix: str, after: str, held: bool
) -> None:
    assert may_hold(folder, prefix, after) is held
