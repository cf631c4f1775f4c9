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

pytestmark = pytest.mark.spec("LOG-2")


class Site(Protocol):
    """A port, and a job whose processes write."""

    folder: Path

    def give(self, file: Path) -> None: ...
    def process(self, stdout: Path | None, job: int = JOB) -> int: ...
    async def open(self, *pids: int, job: int = JOB) -> OpenedOutputs: ...
    async def open_file(self, path: Path | str) -> OpenedOutputs: ...


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

    async def open(self, *pids: int, job: int = JOB) -> OpenedOutputs:
        return await self._port.open_output(str(job), pids)

    async def open_file(self, path: Path | str) -> OpenedOutputs:
        return await self._port.open_output_file(str(JOB), str(path))

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


async def test_a_file_of_several_is_one(site: Site) -> None:
    out = site.folder / "out"
    out.touch()
    pids = [site.process(out), site.process(out)]
    with await site.open(*pids) as opened:
        assert len(opened.files) == 1
        assert {each.pid for each in opened.files[0].holders} == set(pids)


async def test_others_processes_and_those_without_a_file_bring_nothing(site: Site) -> None:
    out = site.folder / "out"
    out.touch()
    other, without = site.process(out, job=JOB + 1), site.process(None)
    with await site.open(other, without, 4_000_000) as opened:
        assert opened.files == ()
        assert (without, 1) in {
            (each.holder.pid, each.holder.descriptor) for each in opened.skipped
        }


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


async def test_what_can_not_be_asked(site: Site) -> None:
    with pytest.raises(UsageError):
        await site.open()
    with pytest.raises(UsageError):
        await site.open_file("relative")
