"""The seals of a node's jobs, as the recorder of terminals asks for them."""

from __future__ import annotations

from typing import Any

import pytest

from lattice.agent.logs import NodeJobSeals
from lattice.base.errors import Unavailable
from lattice.domain.job_seal import JobSeal
from lattice.domain.nodejobs import JobIdentity
from lattice.domain.sealed import DataKey

SEAL = JobSeal(DataKey.new(), "c1", "7@1700000000")


class Followed:
    def __init__(self, job_id: int, started: float, seal: JobSeal | None) -> None:
        self.identity = JobIdentity("boot", job_id, 5, started)
        self.seal = seal


class Server:
    def __init__(self) -> None:
        self.asked: list[tuple[int, float]] = []
        self.away = False
        self.seal: JobSeal | None = SEAL

    async def seal_at(self, job_id: int, started: float) -> JobSeal | None:
        self.asked.append((job_id, started))
        return self.seal

    async def seal_of(self, job_id: int, started: float) -> JobSeal | None:
        self.asked.append((job_id, started))
        if self.away:
            raise Unavailable("No server.")
        return SEAL


def seals(server: Any, *followed: Any) -> NodeJobSeals:
    return NodeJobSeals(lambda: followed, server)


def test_only_keys_of_jobs_that_are_followed_are_known() -> None:
    found = seals(Server(), Followed(7, 100.0, SEAL), Followed(8, 100.0, None))
    assert found.key_of("7@1700000000") == SEAL.key
    assert found.key_of("8@1700000000") is None
    assert found.key_of("7@1600000000") is None


async def test_what_is_known_is_not_asked_for() -> None:
    server = Server()
    found = seals(server, Followed(7, 100.0, SEAL))
    assert await found.ask(7, 100.5) == SEAL
    assert server.asked == []


async def test_an_earlier_run_of_the_same_number_is_another_job() -> None:
    server = Server()
    found = seals(server, Followed(7, 100.0, SEAL))
    await found.ask(7, 5000.0)
    assert server.asked == [(7, 5000.0)]


async def test_without_a_server_nobody_knows() -> None:
    server = Server()
    server.away = True
    with pytest.raises(Unavailable):
        await seals(server, Followed(7, 100.0, None)).ask(7, 100.0)


async def test_the_key_of_a_job_that_writes_nothing_here_is_asked_for() -> None:
    server = Server()
    assert await seals(server).key_for("7@1700000000", 7, 100.0) == SEAL.key
    assert server.asked == [(7, 100.0)]
    assert await seals(server, Followed(7, 100.0, SEAL)).key_for("7@1700000000", 7, 1.0) == SEAL.key
    assert server.asked == [(7, 100.0)]


async def test_the_key_of_another_job_is_none() -> None:
    server = Server()
    assert await seals(server).key_for("7@1600000000", 7, 100.0) is None
    server.seal = None
    assert await seals(server).key_for("7@1700000000", 7, 100.0) is None
