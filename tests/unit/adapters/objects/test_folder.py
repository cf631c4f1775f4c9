"""What is the folder's own: durability, leftovers, and that nothing leads out of it."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from lattice.adapters.objects import CallLimits
from lattice.adapters.objects.folder import FolderObjectStore
from lattice.base.errors import ConfigurationError, Unavailable


async def test_an_object_is_a_file_that_only_the_server_reads(tmp_path: Path) -> None:
    store = FolderObjectStore(tmp_path / "x" / "objects")
    await store.put_new("a/b.log", b"text")
    file = tmp_path / "x" / "objects" / "a" / "b.log"
    assert file.read_bytes() == b"text"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert file.stat().st_nlink == 1
    for folder in (file.parent, file.parents[1]):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


async def test_it_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    acts: list[str] = []

    def told(name: str) -> None:
        real = getattr(os, name)

        def tell(first: int | str, *more: object) -> object:
            kind = (
                "folder" if name == "fsync" and stat.S_ISDIR(os.fstat(int(first)).st_mode) else ""
            )
            acts.append(f"{name} {kind}".strip())
            return real(first, *more)

        monkeypatch.setattr(os, name, tell)

    store = FolderObjectStore(tmp_path)
    for name in ("fsync", "link", "replace"):
        told(name)
    await store.put_new("a/b", b"x")
    assert acts == ["fsync", "fsync folder", "link", "fsync folder"]
    acts.clear()
    await store.put("a/b", b"y")
    assert acts == ["fsync", "replace", "fsync folder"]


async def test_nothing_unfinished_is_left_or_listed(tmp_path: Path) -> None:
    store = FolderObjectStore(tmp_path)
    await store.put_new("a", b"x")
    await store.put_new("a", b"x")
    await store.put("a", b"x")
    left = tmp_path / ".unfinished"
    assert list(left.iterdir()) == []
    (left / "of-a-killed-server").write_bytes(b"half")
    assert [each.key async for each in store.listing("")] == ["a"]
    assert await store.folders("") == ()
    FolderObjectStore(tmp_path)
    assert list(left.iterdir()) == []


async def test_a_link_does_not_lead_out(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("secret")
    store = FolderObjectStore(tmp_path / "objects")
    (tmp_path / "objects" / "way").symlink_to(outside)
    (tmp_path / "objects" / "file").symlink_to(outside / "secret")
    for act in (
        store.read("way/secret"),
        store.read("file"),
        store.put_new("way/new", b""),
        store.put("way/secret", b""),
        store.delete("way/secret"),
    ):
        with pytest.raises(Unavailable):
            await act
    assert [each.key async for each in store.listing("")] == []
    assert await store.folders("") == ()
    assert (outside / "secret").read_text() == "secret"
    assert [each.name for each in outside.iterdir()] == ["secret"]


async def test_an_empty_folder_is_none(tmp_path: Path) -> None:
    """A server killed between making a folder and its first object leaves one."""
    store = FolderObjectStore(tmp_path)
    (tmp_path / "a" / "b").mkdir(parents=True)
    assert await store.folders("") == ()


async def test_a_folder_goes_with_its_last_object(tmp_path: Path) -> None:
    store = FolderObjectStore(tmp_path)
    for key in ("a/b/c/d", "a/b/e"):
        await store.put(key, b"")
    await store.delete("a/b/c/d")
    assert await store.folders("a/b/") == ()
    await store.delete("a/b/e")
    assert [each.name for each in tmp_path.iterdir()] == [".unfinished"]


async def test_a_file_system_that_hangs_hangs_no_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FolderObjectStore(tmp_path, CallLimits(small_s=0.05))
    healed = threading.Event()
    monkeypatch.setattr(os, "link", lambda *_: healed.wait(10))
    try:
        with pytest.raises(Unavailable) as error:
            await store.put_new("a", b"")
        assert "did not answer" in error.value.message
        assert error.value.hint
    finally:
        healed.set()


async def test_a_full_disk_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    store = FolderObjectStore(tmp_path)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(Unavailable) as error:
        await store.put_new("a", b"x")
    assert "no space left" in error.value.message
    assert [each.key async for each in store.listing("")] == []
    assert list((tmp_path / ".unfinished").iterdir()) == []


def test_what_can_be_no_store_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError) as error:
        FolderObjectStore(tmp_path / "file" / "objects")
    assert error.value.hint
