"""Root restores or moves a folder of another account, which put links into it."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from lattice.domain.cluster_record import CLUSTER_KEY
from lattice.server.main import main
from lattice.server.recovery.folder_owner import become_owner
from tests.fakes.stored_backup import back_up
from tests.unit.server.test_recovery import CLUSTER, RECORDS, SingleSite

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another")
ACCOUNT = 54321


@pytest.fixture
def folder() -> Iterator[Path]:
    """Where another account can go, unlike the folders that pytest makes."""
    made = Path(tempfile.mkdtemp())
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


def _in_a_child(step: Callable[[], int]) -> int:
    """Run it in a process of its own, since it gives up rights for good. Returns its exit code."""
    child = os.fork()
    if child == 0:
        code = 99
        try:
            code = step()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _given(folder: Path) -> None:
    for each in (folder, *folder.rglob("*")):
        os.chown(each, ACCOUNT, ACCOUNT, follow_symlinks=False)


def _site(folder: Path) -> SingleSite:
    """A single server with a backup; a restore has run, so that its modules are loaded."""
    site = SingleSite(folder)
    asyncio.run(site.write(CLUSTER_KEY, CLUSTER.encoded()))
    asyncio.run(back_up(site.file, RECORDS))
    assert main(["restore", *site.argv]) == 0
    _given(site.folder)
    _given(folder / "backups")
    return site


def test_root_becomes_the_owner_of_the_folder(folder: Path) -> None:
    _given(folder)

    def ids() -> int:
        become_owner(folder)
        return int(
            (os.getresuid(), os.getresgid()) != ((ACCOUNT,) * 3,) * 2 or os.getgroups() != []
        )

    assert _in_a_child(ids) == 0


def test_a_folder_of_root_or_none_changes_nothing(folder: Path) -> None:
    become_owner(folder)
    become_owner(folder / "none")
    assert os.geteuid() == 0


def test_files_of_a_restore_belong_to_the_account(folder: Path) -> None:
    site = _site(folder)
    assert _in_a_child(lambda: main(["restore", "--older", *site.argv])) == 0
    assert {each.stat().st_uid for each in site.folder.rglob("*")} == {ACCOUNT}


@pytest.mark.threat("server")
def test_a_restore_follows_no_link_out_of_the_folder(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    site, outside = _site(folder), folder / "of-root"
    (site.folder / "state.lock").unlink()
    (site.folder / "state.lock").symlink_to(outside)
    assert _in_a_child(lambda: main(["restore", "--older", *site.argv])) == 78
    assert not outside.exists()
    assert "can't be used: Permission denied" in capfd.readouterr().err


@pytest.mark.threat("server")
def test_a_move_follows_no_link_out_of_the_folder(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    site, outside = _site(folder), folder / "of-root"
    (site.folder / "state.lock").unlink()
    (site.folder / "state.lock").symlink_to(outside)
    sections = {**site.sections, "quorum": {"endpoints": ["http://127.0.0.1:1"]}}
    site.file.write_text(yaml.safe_dump(sections))
    moved = ["move", "--config", str(site.file), "--from", str(site.folder)]
    assert _in_a_child(lambda: main(moved)) == 78
    assert not outside.exists()
    assert "can't be used: Permission denied" in capfd.readouterr().err


def test_a_file_that_the_account_may_not_read_is_named(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    site = _site(folder)
    (site.folder / "grant.key").chmod(0)
    os.chown(site.folder / "grant.key", 0, 0)
    assert _in_a_child(lambda: main(["restore", "--older", *site.argv])) == 78
    printed = capfd.readouterr().err
    assert "grant.key" in printed
    assert "Hint: " in printed
