"""One suite for `OutputOpener`: the fake, and the root helper with real processes."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest

from lattice.base.errors import DataUnavailable, UsageError
from lattice.domain.outputs import OpenedOutputs, OutputOpener
from tests.contract.identities import being
from tests.fakes.in_memory_outputs import InMemoryOutputs
from tests.integration.output_bench import JOB, Bench, content


class Site(Protocol):
    """A port, and a job whose processes write."""

    folder: Path

    def give(self, file: Path) -> None: ...
    def end(self, pid: int) -> None: ...
    def process(self, stdout: Path | None, job: int = JOB) -> int: ...
    async def open(self, *pids: int, job: int = JOB) -> OpenedOutputs: ...
    async def open_file(self, path: Path | str) -> OpenedOutputs: ...
    async def note(self, *pids: int, job: int = JOB) -> int: ...
    async def open_noted(self, skip: int = 0, job: int = JOB) -> OpenedOutputs: ...


class FakeSite:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = InMemoryOutputs()
        self._pids = iter(range(100, 200))

    def give(self, file: Path) -> None:
        """Everything is everybody's here."""

    def process(self, stdout: Path | None, job: int = JOB) -> int:
        pid = next(self._pids)
        self.port.hold(str(job), pid, 1, stdout)
        return pid

    def end(self, pid: int) -> None:
        self.port.held = [each for each in self.port.held if each.holder.pid != pid]

    async def open(self, *pids: int, job: int = JOB) -> OpenedOutputs:
        return await self._port.open_output(str(job), pids)

    async def open_file(self, path: Path | str) -> OpenedOutputs:
        return await self._port.open_output_file(str(JOB), str(path))

    async def note(self, *pids: int, job: int = JOB) -> int:
        return await self._port.note_output(job, pids)

    async def open_noted(self, skip: int = 0, job: int = JOB) -> OpenedOutputs:
        return await self._port.open_noted(str(job), 0, 0, skip)

    @property
    def _port(self) -> OutputOpener:
        return self.port


class HelperSite:
    def __init__(self, bench: Bench) -> None:
        self.folder = bench.folder
        self._bench = bench

    def give(self, file: Path) -> None:
        shutil.chown(file, "alice")

    def process(self, stdout: Path | None, job: int = JOB) -> int:
        if stdout is not None:
            self.give(stdout)
        return self._bench.start(["sleep", "300"], stdout=stdout or Path("/dev/null"), job=job)

    def end(self, pid: int) -> None:
        self._bench.end(pid)

    async def note(self, *pids: int, job: int = JOB) -> int:
        with being("lattice-agent"):
            return await self._bench.port.note_output(job, pids)

    async def open_noted(self, skip: int = 0, job: int = JOB) -> OpenedOutputs:
        grant = self._bench.grant_for_noted(job, skip=skip)
        with being("lattice-agent"):
            return await self._bench.port.open_noted(grant, 0, 0, skip)

    async def open(self, *pids: int, job: int = JOB) -> OpenedOutputs:
        grant = self._bench.grant_for_pids(pids, job)
        with being("lattice-agent"):
            return await self._bench.port.open_output(grant, pids)

    async def open_file(self, path: Path | str) -> OpenedOutputs:
        grant = self._bench.grant_for_path(str(path))
        with being("lattice-agent"):
            return await self._bench.port.open_output_file(grant, str(path))


@pytest.fixture(params=["fake", pytest.param("helper", marks=pytest.mark.lab)])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    if request.param == "fake":
        yield FakeSite(tmp_path)
        return
    if os.geteuid() != 0:
        pytest.skip("the helper is started as root")
    folder = Path(tempfile.mkdtemp(prefix="lattice-outputs-", dir="/var/lib"))
    bench = Bench(folder)
    try:
        yield HelperSite(bench)
    finally:
        bench.close()
        shutil.rmtree(folder)


@pytest.mark.spec("LOG-2")
async def test_what_a_process_writes_is_read(site: Site) -> None:
    out = site.folder / "out"
    out.write_text("one\n")
    pid = site.process(out)
    with await site.open(pid) as opened:
        (file,) = opened.files
        assert content(file) == b"one\n"
        assert (file.size, file.path, file.comm) == (4, str(out), "sleep")
        assert file.identity == (out.stat().st_dev, out.stat().st_ino)
        assert [(each.pid, each.descriptor) for each in file.holders] == [(pid, 1)]
        with out.open("a") as more:
            more.write("two\n")
        assert content(file) == b"one\ntwo\n"
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(file.fd)


@pytest.mark.spec("LOG-2")
async def test_a_file_of_several_is_one(site: Site) -> None:
    out = site.folder / "out"
    out.touch()
    pids = [site.process(out), site.process(out)]
    with await site.open(*pids) as opened:
        assert len(opened.files) == 1
        assert {each.pid for each in opened.files[0].holders} == set(pids)


@pytest.mark.spec("LOG-2")
async def test_others_processes_and_those_without_a_file_bring_nothing(site: Site) -> None:
    out = site.folder / "out"
    out.touch()
    other, without = site.process(out, job=JOB + 1), site.process(None)
    with await site.open(other, without, 4_000_000) as opened:
        assert opened.files == ()
        assert (without, 1) in {
            (each.holder.pid, each.holder.descriptor) for each in opened.skipped
        }


@pytest.mark.spec("LOG-2")
async def test_a_file_by_its_path(site: Site) -> None:
    out = site.folder / "out"
    out.write_text("named\n")
    site.give(out)
    with await site.open_file(out) as opened:
        (file,) = opened.files
        assert (content(file), file.holders) == (b"named\n", ())
    for missing in (site.folder / "none", site.folder):
        with pytest.raises(DataUnavailable):
            await site.open_file(missing)


@pytest.mark.spec("LOG-2", "LOG-3")
@pytest.mark.parametrize("by", ["note", "open"])
async def test_what_was_noted_is_opened_when_the_process_is_gone(site: Site, by: str) -> None:
    """By noting alone, and by opening, which notes too."""
    out = site.folder / "out"
    out.write_text("one\n")
    pid = site.process(out)
    if by == "note":
        assert await site.note(pid) == 1
        assert await site.note(pid) == 1
    else:
        (await site.open(pid)).close()
    with out.open("a") as more:
        more.write("two\n")
    site.end(pid)
    with await site.open(pid) as opened:
        assert opened.files == ()
    with await site.open_noted() as opened:
        (file,) = opened.files
        assert content(file) == b"one\ntwo\n"
        assert (file.size, file.path, opened.more) == (8, str(out), False)
        assert [(each.pid, each.descriptor) for each in file.holders] == [(pid, 1)]
    with await site.open_noted(job=JOB + 1) as opened:
        assert opened.files == ()
    with await site.open_noted(skip=1) as opened:
        assert opened.files == ()


@pytest.mark.spec("LOG-3")
@pytest.mark.threat("exchanged-file")
async def test_a_noted_file_that_is_gone_or_another_is_said_to_be(site: Site) -> None:
    files = [site.folder / name for name in ("gone", "exchanged", "moved", "same")]
    for each in files:
        each.write_text(f"{each.name}\n")
    pids = [site.process(each) for each in files]
    assert await site.note(*pids) == 4
    gone, exchanged, moved, _ = files
    gone.unlink()
    other = site.folder / "new"
    other.write_text("another\n")
    site.give(other)
    other.rename(exchanged)
    moved.rename(site.folder / "elsewhere")
    with await site.open_noted() as opened:
        assert [content(each) for each in opened.files] == [b"same\n"]
        assert {each.holder.pid for each in opened.skipped} == set(pids[:3])
        assert all(each.why for each in opened.skipped)


@pytest.mark.spec("LOG-2")
async def test_of_others_processes_nothing_is_noted(site: Site) -> None:
    out = site.folder / "out"
    out.touch()
    other, without = site.process(out, job=JOB + 1), site.process(None)
    assert await site.note(other, without, 4_000_000) == 0
    with await site.open_noted() as opened:
        assert opened.files == ()


async def test_what_can_not_be_asked(site: Site) -> None:
    with pytest.raises(UsageError):
        await site.open()
    with pytest.raises(UsageError):
        await site.open_file("relative")
    with pytest.raises(UsageError):
        await site.note()
    with pytest.raises(UsageError):
        await site.note(7, job=0)
    with pytest.raises(UsageError):
        await site.open_noted(skip=-1)
