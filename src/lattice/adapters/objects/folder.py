"""`FolderObjectStore`: the port `ObjectStore` over a folder, for one server.

An object is a file at its key's path. It is written under another name, synced, and only then
linked to its path. So a reader never sees a part of an object. Blocking calls run in threads; one
that hangs (a dead NFS server) is abandoned after the call's time.
"""

from __future__ import annotations

import asyncio
import errno
import os
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import TypeVar

from lattice.adapters.objects import LARGEST_BODY_BYTES, CallLimits
from lattice.adapters.objects.inorder import may_hold
from lattice.base.errors import ConfigurationError, Unavailable
from lattice.domain.objects import NoObject, ObjectInfo, check_key, check_prefix

T = TypeVar("T")

_UNFINISHED = ".unfinished"
"""No key has a part that begins with a dot."""
_LISTED_AT_ONCE = 500
_RACES = 20
"""How often a writer's folder may vanish because its last object was just deleted."""


class FolderObjectStore:
    """For one process: at its start it removes unfinished files of an earlier one."""

    def __init__(self, folder: Path, limits: CallLimits | None = None) -> None:
        """Create the folder if there is none. Raises `ConfigurationError`."""
        self._limits = limits or CallLimits()
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._root = folder.resolve(strict=True)
            self._unfinished = self._root / _UNFINISHED
            self._unfinished.mkdir(mode=0o700, exist_ok=True)
            for left in self._unfinished.iterdir():
                left.unlink()
        except OSError as error:
            raise ConfigurationError(
                f"The folder {folder} can't be the object store: {error.strerror or error}.",
                hint="It must be a folder that the server's user may write.",
            ) from error

    async def put_new(self, key: str, body: bytes) -> bool:
        """Write if the key does not exist; False if it does."""
        path = self._path(key)

        def put() -> bool:
            try:
                self._write_durably(path, body, os.link)
            except FileExistsError:
                return False
            return True

        return await self._call(put, len(body))

    async def put(self, key: str, body: bytes) -> None:
        """Write unconditionally."""
        path = self._path(key)
        await self._call(lambda: self._write_durably(path, body, os.replace), len(body))

    async def read(self, key: str, begin: int = 0, end: int | None = None) -> bytes:
        """The bytes from `begin` up to `end`; fewer if the object ends before."""
        path = self._path(key)

        def read() -> bytes:
            with os.fdopen(self._open(path), "rb") as file:
                file.seek(begin)
                return file.read(-1 if end is None else max(0, end - begin))

        expected = LARGEST_BODY_BYTES if end is None else max(0, end - begin)
        return await self._call(read, min(expected, LARGEST_BODY_BYTES))

    async def read_end(self, key: str, most_bytes: int) -> tuple[bytes, int]:
        """The last bytes of an object, and its whole size."""
        path = self._path(key)

        def read() -> tuple[bytes, int]:
            with os.fdopen(self._open(path), "rb") as file:
                size = os.fstat(file.fileno()).st_size
                file.seek(max(0, size - max(0, most_bytes)))
                return file.read(), size

        return await self._call(read, min(max(0, most_bytes), LARGEST_BODY_BYTES))

    async def listing(self, prefix: str, *, after: str = "") -> AsyncIterator[ObjectInfo]:
        """Keys that begin with `prefix` and sort after `after`, in order."""
        check_prefix(prefix)
        check_prefix(after)
        walk = self._walk(prefix[: prefix.rfind("/") + 1], prefix, after)
        while found := await self._call(lambda: list(islice(walk, _LISTED_AT_ONCE))):
            for each in found:
                yield each

    async def folders(self, prefix: str) -> tuple[str, ...]:
        """The prefixes one level below; those without an object are left out."""
        check_prefix(prefix)

        def find() -> tuple[str, ...]:
            below = (name for name, entry in self._entries(prefix) if entry.is_dir())
            return tuple(name for name in below if any(self._walk(name, name, "")))

        return await self._call(find, LARGEST_BODY_BYTES)

    async def delete(self, key: str) -> None:
        """Remove it; a missing key is no error. Removes empty folders too, as on S3."""
        path = self._path(key)

        def delete() -> None:
            self._here()
            self._within(path)
            with suppress(FileNotFoundError, NotADirectoryError):
                path.unlink()
                _sync(path.parent)
            for folder in path.parents:
                if folder == self._root:
                    break
                try:
                    folder.rmdir()
                except OSError:
                    break

        await self._call(delete)

    def _path(self, key: str) -> Path:
        check_key(key)
        return self._root / key

    def _within(self, path: Path) -> None:
        """A symbolic link must not lead out of the folder."""
        if not path.parent.resolve().is_relative_to(self._root):
            raise OSError(errno.ELOOP, "a link in it leads out of it")

    def _here(self) -> None:
        """A share that is not mounted would look like a store without objects."""
        if not self._unfinished.is_dir():
            raise FileNotFoundError(errno.ENOENT, "it is not there, or not mounted")

    def _open(self, path: Path) -> int:
        self._within(path)
        try:
            return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            self._here()
            raise NoObject(path.relative_to(self._root).as_posix()) from None

    def _write_durably(
        self, path: Path, body: bytes, give_name: Callable[[str, Path], None]
    ) -> None:
        """Write it durably under a temporary name, then give it its own."""
        file, name = tempfile.mkstemp(dir=self._unfinished)
        try:
            with os.fdopen(file, "wb") as unfinished:
                unfinished.write(body)
                unfinished.flush()
                os.fsync(unfinished.fileno())
            for race in range(_RACES):
                try:
                    self._make_folders(path.parent)
                    self._within(path)
                    give_name(name, path)
                    break
                except FileNotFoundError:
                    if race == _RACES - 1:
                        raise
            _sync(path.parent)
        finally:
            with suppress(FileNotFoundError):
                Path(name).unlink()

    def _make_folders(self, folder: Path) -> None:
        """Sync each folder's parent before anything is put into the folder."""
        missing = []
        while not folder.exists():
            missing.append(folder)
            folder = folder.parent
        for each in reversed(missing):
            with suppress(FileExistsError):
                each.mkdir(mode=0o700)
            _sync(each.parent)

    def _entries(self, folder: str) -> list[tuple[str, os.DirEntry[str]]]:
        """Its entries in the order of keys: a folder sorts with its slash."""
        try:
            with os.scandir(self._root / folder) as found:
                entries = [each for each in found if not each.name.startswith(".")]
        except (FileNotFoundError, NotADirectoryError):
            self._here()
            return []
        named = []
        for each in entries:
            if each.is_dir(follow_symlinks=False):
                named.append((f"{folder}{each.name}/", each))
            elif each.is_file(follow_symlinks=False):
                named.append((f"{folder}{each.name}", each))
        return sorted(named, key=lambda pair: pair[0])

    def _walk(self, folder: str, prefix: str, after: str) -> Iterator[ObjectInfo]:
        for key, entry in self._entries(folder):
            if key.endswith("/"):
                if may_hold(key, prefix, after):
                    yield from self._walk(key, prefix, after)
            elif key.startswith(prefix) and key > after:
                with suppress(FileNotFoundError):  # deleted meanwhile
                    about = entry.stat(follow_symlinks=False)
                    modified = datetime.fromtimestamp(about.st_mtime, UTC)
                    yield ObjectInfo(key, about.st_size, modified)

    async def _call(self, act: Callable[[], T], body_bytes: int = 0) -> T:
        call_s = self._limits.call_s(body_bytes)
        try:
            async with asyncio.timeout(call_s):
                return await asyncio.to_thread(act)
        except TimeoutError as late:
            reason = f"did not answer within {call_s:.0f} s"
            hint = "Its file system hangs: look at the disk or the share it lies on."
            raise Unavailable(f"The object store's folder {reason}.", hint=hint) from late
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            hint = f"Look at {self._root}: who may write it, and how full it is."
            raise Unavailable(f"The object store's folder failed: {reason}.", hint=hint) from error


def _sync(folder: Path) -> None:
    """Names are durable once their folder is synced. A folder that is gone needs no sync."""
    with suppress(FileNotFoundError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
