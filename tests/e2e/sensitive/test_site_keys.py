"""The keys of the site: one is exchanged while servers run, and a token that holds them is away."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import yaml

from lab.addresses import SEAWEED_S3_PORT
from lab.doorway import Doorway
from lab.laboratory import Lab
from lab.sensitive import FIRST_SITE_KEY, write_site_keys
from lab.softhsm import FIRST_KEY, SoftHsm
from lattice.adapters.objects.s3 import S3ObjectStore
from lattice.foundation.data_keys import ENDED_S
from tests.e2e.log_lines import numbers, script
from tests.e2e.people import Person
from tests.e2e.sealed_bucket import objects_of, sensitive_bucket, summed_up
from tests.e2e.sensitive_jobs import (
    claimed,
    key_record,
    key_records,
    remove_key_record,
    sensitive_job,
    spooled,
)
from tests.e2e.test_monitoring import by, scraped
from tests.e2e.test_reload import reload
from tests.eventually import eventually

pytestmark = [pytest.mark.lab, pytest.mark.long, pytest.mark.timeout(900)]

SECOND_SITE_KEY = "site-2"
_MARKER = "patient"
_FORGET_S = ENDED_S + 60


@pytest.fixture
def doorway(lab: Lab) -> Iterator[Doorway]:
    with Doorway(lab.network, (SEAWEED_S3_PORT,)) as opened:
        yield opened


def _exchange(lab: Lab, *names: str) -> None:
    write_site_keys(lab, *names)
    for server in lab.servers:
        reload(server)


def _forgotten(lab: Lab) -> bool:
    """No server has a data key in its memory."""
    pages = (scraped(lab, each) for each in lab.servers)
    return all("\nlattice_data_keys_in_memory 0" in each for each in pages)


def _at_each_server(lab: Lab, alice: Person, job: int, writer: str) -> list[list[int]]:
    """The numbers of the lines as each server reads them."""
    found = []
    for server in lab.servers:
        env = {**alice.bearer, "LATTICE_API_URL": server.url}
        read = alice.lattice("logs", str(job), "--prefix", "none", env=env)
        assert read.code == 0, read
        found.append(numbers(read.out.splitlines(), writer))
    return found


@pytest.fixture
def first_key_again(sensitive_lab: Lab) -> Iterator[None]:
    """For the stories after this one: all that the lab has is wrapped with its first key again."""
    yield
    _exchange(sensitive_lab, SECOND_SITE_KEY, FIRST_SITE_KEY)
    eventually(lambda: _wrapped_with(sensitive_lab) <= {FIRST_SITE_KEY})
    _exchange(sensitive_lab, FIRST_SITE_KEY)


def _wrapped_with(lab: Lab) -> set[str]:
    return {each.site_key for each in key_records(lab).values()}


@pytest.mark.spec("LOG-8")
@pytest.mark.threat("sensitive")
@pytest.mark.usefixtures("first_key_again")
async def test_the_key_of_the_site_is_exchanged_while_servers_run(
    sensitive_lab: Lab, doorway: Doorway, tmp_path: Path
) -> None:
    lab, bucket = sensitive_lab, sensitive_bucket(doorway, tmp_path)
    with claimed(lab) as alice:
        before = sensitive_job(lab, alice, script("before", 300))
        lab.wait_job_state(before, "COMPLETED")
        stored = await summed_up(bucket, before)
        across = sensitive_job(lab, alice, script("across", 600, pause_s=0.3))
        eventually(lambda: alice.tries("logs", str(across)).out)
        assert _wrapped_with(lab) == {FIRST_SITE_KEY}

        # The control: without the old key nobody reads what it wrapped, and nothing is lost.
        _exchange(lab, SECOND_SITE_KEY)
        eventually(
            lambda: alice.tries("logs", str(before)),
            lambda seen: FIRST_SITE_KEY in seen.out + seen.err and "before.0" not in seen.out,
            patience_s=_FORGET_S + 60,
            pause_s=ENDED_S + 15,
        )
        assert key_record(lab, before)[1].site_key == FIRST_SITE_KEY

        _exchange(lab, FIRST_SITE_KEY, SECOND_SITE_KEY)
        eventually(lambda: _wrapped_with(lab) == {SECOND_SITE_KEY})
        counted = [
            by(scraped(lab, each), "lattice_data_keys_wrapped_again_total") for each in lab.servers
        ]
        assert sum(sum(each.values()) for each in counted) >= 2
        assert await objects_of(bucket, before) == stored, "no object was sealed again"
        after = sensitive_job(lab, alice, script("after", 300))
        lab.wait_job_state(after, "COMPLETED")
        await summed_up(bucket, after)
        assert key_record(lab, after)[1].site_key == SECOND_SITE_KEY

        _exchange(lab, SECOND_SITE_KEY)
        lab.wait_job_state(across, "COMPLETED", timeout_s=300)
        alice.logged_in("sensitive:claim")
        for job, writer, count in (
            (before, "before", 300),
            (across, "across", 600),
            (after, "after", 300),
        ):
            await summed_up(bucket, job)
            eventually(lambda: _forgotten(lab), patience_s=_FORGET_S)
            whole = [list(range(count))] * len(lab.servers)
            assert _at_each_server(lab, alice, job, writer) == whole


@asynccontextmanager
async def _served_by_token(lab: Lab) -> AsyncIterator[SoftHsm]:
    """The servers while a token has the keys of the site, in place of the file."""
    token = SoftHsm(lab.layout, lab.control.machine)
    await token.make()
    before = {each: each.config_file.read_text() for each in lab.servers}
    try:
        for server, text in before.items():
            sections = yaml.safe_load(text)
            del sections["sensitive"]["keys_file"]
            sections["sensitive"] |= token.section
            server.environment |= token.environment
            server.write_config(sections)
            server.process.restart()
        yield token
    finally:
        for ref, record in key_records(lab).items():
            if record.site_key == FIRST_KEY:
                remove_key_record(lab, ref)
        for server, text in before.items():
            for name in token.environment:
                server.environment.pop(name, None)
            server.write_config(yaml.safe_load(text))
            server.process.restart()


_WAYS: dict[str, tuple[Callable[[SoftHsm], None], Callable[[SoftHsm], None]]] = {
    "token": (SoftHsm.take_away, SoftHsm.put_back),
    "module": (SoftHsm.break_module, SoftHsm.mend_module),
}


@pytest.mark.spec("LOG-8")
@pytest.mark.threat("sensitive")
async def test_while_the_token_is_away_nothing_is_plain_and_nothing_is_lost(
    sensitive_lab: Lab, doorway: Doorway, tmp_path: Path
) -> None:
    lab, bucket = sensitive_lab, sensitive_bucket(doorway, tmp_path)
    async with _served_by_token(lab) as token:
        with claimed(lab) as alice:
            await _stays_sealed(lab, bucket, token, alice)


async def _stays_sealed(lab: Lab, bucket: S3ObjectStore, token: SoftHsm, alice: Person) -> None:
    first = sensitive_job(lab, alice, script(_MARKER, 300))
    lab.wait_job_state(first, "COMPLETED")
    objects = await summed_up(bucket, first)
    assert key_record(lab, first)[1].site_key == FIRST_KEY
    assert all(body.endswith(b"LATSEAL1") for body in objects.values())
    eventually(lambda: _forgotten(lab), patience_s=_FORGET_S)
    whole = [list(range(300))] * len(lab.servers)
    assert _at_each_server(lab, alice, first, _MARKER) == whole

    for take_away, put_back in _WAYS.values():
        alice.logged_in("sensitive:claim")
        running = sensitive_job(lab, alice, script("running", 150, pause_s=0.2))
        eventually(lambda job=running: "running.0 0 " in alice.tries("logs", str(job)).out)
        take_away(token)
        try:
            waiting = sensitive_job(lab, alice, script(_MARKER, 20, pause_s=0.5))
            said = eventually(
                lambda job=waiting: alice.tries("logs", str(job)),
                lambda seen: "token" in seen.out + seen.err,
            )
            assert _MARKER not in said.out
            lab.wait_job_state(waiting, "COMPLETED")
            assert spooled(lab, "n1", waiting) == []
            # Its agent has the key of a job that ran before.
            eventually(
                lambda job=running: numbers(
                    alice.tries("logs", str(job)).out.splitlines(), "running"
                ),
                lambda seen: len(seen) == 150,
            )
        finally:
            put_back(token)
        for job, writer, count in ((waiting, _MARKER, 20), (running, "running", 150)):
            found = eventually(
                lambda job=job, writer=writer: numbers(
                    alice.tries("logs", str(job), "--prefix", "none").out.splitlines(), writer
                ),
                lambda seen, count=count: len(seen) == count,
            )
            assert found == list(range(count))
            objects = await summed_up(bucket, job)
            assert all(body.endswith(b"LATSEAL1") for body in objects.values())
