"""The servers, nodes and viewers that benches are made of, at a small size."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from bench import logs_many_nodes
from bench.cli import Command, _time_ms, stand_in, without_ca
from bench.logs_history_served import moment
from bench.logs_history_site import JOB, OWNER, Site, s3_place
from bench.logs_many_nodes import FollowedJob
from bench.measuring import Part
from bench.simulated import PEOPLE_CA, people_served
from bench.stories import log_text
from lattice.base.clock import SystemClock
from tests.fakes.in_memory_objects import InMemoryObjectStore
from tests.fakes.server import composed, token
from tests.fakes.terminal import PROGRAM
from tests.integration.link.site import Site as LinkSite

pytestmark = pytest.mark.timeout(240)

ROOT = Path(__file__).resolve().parents[2]
NODES, VIEWERS, LINES = 5, 2, 6
PATIENCE_S = 120.0


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> Iterator[ExitStack]:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(ROOT), str(ROOT / "src"))))
    with ExitStack() as stack:
        yield stack


def test_every_viewer_has_each_line_before_the_next_is_written(
    tmp_path: Path, parts: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("LINES", LINES), ("SETTLE_S", 0.1), ("QUIET_S", 0.2)):
        monkeypatch.setattr(logs_many_nodes, name, value)
    LinkSite(tmp_path)

    def part(role: str, *given: str) -> Part:
        made = Part("bench.logs_many_nodes", "--role", role, *given)
        parts.callback(made.end)
        made.until(bool, PATIENCE_S)
        return made

    server = part("serve", str(tmp_path), str(NODES))
    port = str(server.last["agents"])
    crowds = [part("nodes", str(tmp_path), port, str(n), str(NODES)) for n in range(2)]
    server.until(lambda state: state["linked"] >= NODES, PATIENCE_S)
    people = part(
        *("viewers", str(server.last["people"]), str(tmp_path / PEOPLE_CA)),
        *(str(VIEWERS), str(NODES)),
    )
    job = FollowedJob(server, crowds, tmp_path, NODES, VIEWERS)
    found = job._measured(people)
    assert people.last["lines"] == NODES + LINES
    assert (people.last["complete"], people.last["lost"]) == (VIEWERS, 0)
    assert 0 < found.first_s <= found.last_s
    assert {*found.opening} == {*found.lines} == {"server", "agents", "viewers"}
    assert min(found.opening.values()) > 0


async def test_the_command_reads_an_old_range_from_the_server_of_the_bench(tmp_path: Path) -> None:
    size = 3_000_000
    objects = InMemoryObjectStore(SystemClock())
    site = Site(s3_place(tmp_path, "http://127.0.0.1:1"), objects=objects)
    await site.fill(tmp_path / "spool", size)
    assert (await site.stored()).end.offset == size
    again = Site(s3_place(tmp_path, "http://127.0.0.1:1"), site.began, objects)
    async with people_served(composed(again.scheduler, objects=objects), tmp_path) as url:
        command = await asyncio.create_subprocess_exec(
            *PROGRAM,
            *("logs", str(JOB), "--prefix", "none", "--since", moment(site.ms(0.0))),
            *("--until", moment(site.ms(1.0))),
            env={
                "HOME": str(tmp_path),
                "PATH": os.environ["PATH"],
                "LANG": "C.UTF-8",
                "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "src"))),
                "LATTICE_API_URL": url,
                "LATTICE_CA": str(tmp_path / PEOPLE_CA),
                "LATTICE_TOKEN": token(OWNER, preferred_username=OWNER),
            },
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        printed, problem = await command.communicate()
    assert command.returncode == 0, problem
    assert printed.removesuffix(b"\n") == log_text(size).removesuffix(b"\n")


def test_status_without_ca_trusts_the_folder_of_the_system_alone(tmp_path: Path) -> None:
    with stand_in() as environment:
        found = environment | {"PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "src")))}
        without = without_ca(found, tmp_path)
        status = [*PROGRAM, "status"]
        assert _time_ms(Command(status, without)) > 0
        untrusted = without | {"SSL_CERT_DIR": str(tmp_path / "none")}
        with pytest.raises(SystemExit, match="certificate"):
            _time_ms(Command(status, untrusted))
