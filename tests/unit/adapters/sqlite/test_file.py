"""The file: what it survives, and what it says where it can't be used."""

from __future__ import annotations

import sqlite3
import stat
from pathlib import Path

import pytest

from lattice.adapters.sqlite import database as database_module
from lattice.adapters.sqlite.database import Database
from lattice.adapters.sqlite.store import open_sqlite
from lattice.base.errors import ConfigurationError, Unavailable
from lattice.domain.state import Compacted, Put


@pytest.mark.spec("TRY-1")
async def test_what_was_put_is_there_after_a_restart(tmp_path: Path) -> None:
    async with open_sqlite(tmp_path / "new" / "folder") as store:
        revision = await store.put("a", b"1")
    async with open_sqlite(tmp_path / "new" / "folder") as store:
        entry = await store.get("a")
        assert entry is not None
        assert entry.revision == revision
        assert await store.put("b", b"") == revision + 1


async def test_only_its_owner_may_read_it(tmp_path: Path) -> None:
    async with open_sqlite(tmp_path / "state"):
        modes = [stat.S_IMODE(each.stat().st_mode) for each in (tmp_path / "state").iterdir()]
    assert set(modes) == {0o600}
    assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o700


@pytest.mark.spec("TRY-1")
async def test_the_second_process_is_refused_in_words(tmp_path: Path) -> None:
    async with open_sqlite(tmp_path):
        with pytest.raises(ConfigurationError, match="in use by another lattice-server"):
            async with open_sqlite(tmp_path):
                pass
    async with open_sqlite(tmp_path):
        pass


async def test_a_folder_that_can_not_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="can't be used"):
        async with open_sqlite(tmp_path / "file"):
            pass


@pytest.mark.parametrize(
    "content", [b"not a database" * 100, b"SQLite format 3\x00" + b"\xff" * 200]
)
async def test_a_spoilt_file_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "state.db").write_bytes(content)
    with pytest.raises(ConfigurationError, match=r"state\.db can't be used as a database"):
        async with open_sqlite(tmp_path):
            pass


async def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "state.db") as line:
        line.execute("PRAGMA user_version=7")
    line.close()
    with pytest.raises(ConfigurationError, match="has format 7"):
        async with open_sqlite(tmp_path):
            pass


async def test_history_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_module, "HISTORY_REVISIONS", 100)
    async with open_sqlite(tmp_path) as store:
        for number in range(500):
            await store.put("a", b"%d" % number)
        newest = (await store.list("")).revision
        async with store.watch("", 1) as batches:
            with pytest.raises(Compacted):
                await anext(batches)
        async with store.watch("", newest - 100) as batches:
            seen = [await anext(batches) for _ in range(100)]
        assert [batch[0].revision for batch in seen] == list(range(newest - 99, newest + 1))
    line = sqlite3.connect(tmp_path / "state.db")
    (kept,) = line.execute("SELECT count(*) FROM history").fetchone()
    line.close()
    assert kept <= 200


def test_a_disk_that_fails_is_unavailable_and_nothing_is_half_done(tmp_path: Path) -> None:
    base = Database(tmp_path / "state.db")
    base.commit([], [Put("a", b"1")])
    base._line.execute("PRAGMA max_page_count = 1")
    with pytest.raises(Unavailable, match="can't be used") as error:
        base.commit([], [Put(f"b/{number}", b"v" * 4000) for number in range(50)])
    assert error.value.hint
    entries, _ = base.list("")
    assert [each.key for each in entries] == ["a"]
    base.close()
