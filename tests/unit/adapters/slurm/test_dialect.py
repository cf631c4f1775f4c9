from __future__ import annotations

import json

import pytest

from lattice.adapters.slurm.answer import SlurmRefused
from lattice.adapters.slurm.dialect import Dialects, VersionOffer, choose, offered
from lattice.adapters.slurm.schema.decoder import known_schemas
from lattice.base.errors import Unavailable
from tests.fakes.manual_clock import ManualClock
from tests.fakes.recorded_slurm import RecordedSlurm, recording

KNOWN = {schema.version: schema for schema in known_schemas()}
NEWER = [version for version in KNOWN if version not in {"v0.0.38", "v0.0.45"}]


def test_every_version_from_22_05_to_26_05_is_known() -> None:
    assert list(KNOWN) == [f"v0.0.{number}" for number in range(38, 46)]


def test_the_highest_version_both_know_is_chosen() -> None:
    chosen = choose(offered(recording("openapi")), KNOWN)
    assert chosen["slurm"].schema.version == "v0.0.38"
    assert chosen["slurm"].path("jobs") == "/slurm/v0.0.38/jobs"
    assert chosen["slurmdb"].path("accounts") == "/slurmdb/v0.0.38/accounts"
    assert not chosen["slurmdb"].offers("jobs", "users")
    assert chosen["slurmdb"].offers("jobs", "skip_steps")


def test_versions_are_ordered_as_numbers_and_unknown_ones_left_alone() -> None:
    offers = [
        VersionOffer(f"/{side}/v0.0.{number}/jobs/")
        for side in ("slurm", "slurmdb")
        for number in (9, 41, 40, 99, 100)
    ]
    chosen = choose(offers, KNOWN)
    assert chosen["slurm"].schema.version == "v0.0.41"
    assert chosen["slurm"].path("jobs") == "/slurm/v0.0.41/jobs/"


@pytest.mark.spec("ALLOC-7")
def test_a_version_that_nobody_knows_yet_is_read_like_the_newest_known() -> None:
    offers = [
        VersionOffer(f"/{side}/v0.0.{number}/jobs/")
        for side in ("slurm", "slurmdb")
        for number in (12, 47, 46)
    ]
    chosen = choose(offers, KNOWN)
    assert chosen["slurm"].schema.version == "v0.0.45"
    assert chosen["slurm"].version == "v0.0.46"
    assert chosen["slurm"].path("jobs") == "/slurm/v0.0.46/jobs/"


@pytest.mark.spec("ALLOC-7")
async def test_it_is_named_in_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    slurm = RecordedSlurm()
    names = ("jobs", "nodes", "diag")
    body = json.dumps({"paths": {f"/slurm/v0.0.46/{name}/": {} for name in names}})
    slurm.answers["/openapi/v3"] = lambda _: (200, body.encode())
    dialects = Dialects(slurm.rest(), known_schemas(), ManualClock())
    await dialects.live()
    await dialects.live()
    (told,) = [each.getMessage() for each in caplog.records if "newer" in each.getMessage()]
    assert "v0.0.46 is read like v0.0.45" in told


@pytest.mark.spec("ALLOC-7")
def test_it_is_refused_if_a_needed_field_is_gone() -> None:
    fields = frozenset({"job_id", "user_name", "account", "job_state", "submit_time", "nodes"})
    choose([VersionOffer("/slurm/v0.0.46/jobs/", fields=fields)], KNOWN)
    with pytest.raises(SlurmRefused, match=r"jobs of v0\.0\.46 have no job_state") as caught:
        choose([VersionOffer("/slurm/v0.0.46/jobs/", fields=fields - {"job_state"})], KNOWN)
    assert "Upgrade Lattice" in (caught.value.hint or "")


def test_the_fields_of_records_are_found_in_the_description() -> None:
    def reference(name: str) -> dict[str, str]:
        return {"$ref": f"#/components/schemas/{name}"}

    answer = {"200": {"content": {"application/json": {"schema": reference("answer")}}}}
    schemas = {
        "answer": {"properties": {"jobs": reference("list"), "errors": {}}},
        "list": {"type": "array", "items": reference("job")},
        "job": {"properties": {"job_id": {}, "nodes": {}}},
    }
    document = {
        "paths": {"/slurm/v0.0.46/jobs/": {"get": {"responses": answer}}},
        "components": {"schemas": schemas},
    }
    (found,) = offered(json.dumps(document).encode())
    assert found.fields == {"job_id", "nodes"}
    del schemas["job"]
    (found,) = offered(json.dumps(document).encode())
    assert found.fields == frozenset()


@pytest.mark.parametrize("version", NEWER)
async def test_newer_ones_are_found_by_their_own_description(version: str) -> None:
    dialects = Dialects(RecordedSlurm(version).rest(), known_schemas(), ManualClock())
    past = await dialects.past()
    assert past.schema.version == version
    assert past.offers("jobs", "users")
    assert (await dialects.live()).schema.version == version


async def test_it_is_asked_once_and_again_when_forgotten() -> None:
    slurm = RecordedSlurm()
    dialects = Dialects(slurm.rest(), known_schemas(), ManualClock())
    await dialects.live()
    await dialects.past()
    assert slurm.count("openapi") == 1
    dialects.forget()
    await dialects.live()
    assert slurm.count("openapi") == 2


@pytest.mark.parametrize("sign", ["lost", "ten minutes"])
async def test_after_an_upgrade_the_newest_version_is_read(sign: str) -> None:
    slurm, clock = RecordedSlurm("v0.0.42"), ManualClock()
    rest = slurm.rest()
    dialects = Dialects(rest, known_schemas(), clock)
    assert (await dialects.live()).version == "v0.0.42"
    slurm.answers["/openapi/v3"] = lambda _: (200, recording("openapi", "v0.0.45"))
    assert (await dialects.live()).version == "v0.0.42"
    if sign == "lost":
        slurm.away.add("slurm")
        with pytest.raises(Unavailable):
            await rest.get("/slurm/v0.0.42/jobs", timeout_s=1)
        slurm.away.clear()
    else:
        clock.advance(600)
    assert (await dialects.live()).version == (await dialects.past()).version == "v0.0.45"
    assert slurm.count("openapi") == 2


async def test_while_the_list_can_not_be_read_again_the_version_stays() -> None:
    slurm, clock = RecordedSlurm(), ManualClock()
    dialects = Dialects(slurm.rest(), known_schemas(), clock)
    await dialects.live()
    clock.advance(600)
    slurm.away.add("openapi")
    assert (await dialects.live()).version == "v0.0.38"


async def test_one_side_alone_can_be_had() -> None:
    slurm = RecordedSlurm()
    body = json.dumps(
        {"paths": {f"/slurm/v0.0.38/{name}": {} for name in ("jobs", "nodes", "diag")}}
    )
    slurm.answers["/openapi/v3"] = lambda _: (200, body.encode())
    dialects = Dialects(slurm.rest(), known_schemas(), ManualClock())
    assert (await dialects.live()).schema.version == "v0.0.38"
    with pytest.raises(Unavailable, match="no version of /slurmdb") as caught:
        await dialects.past()
    assert caught.value.hint is not None
    assert "v0.0.45" in caught.value.hint


async def test_a_refused_token_says_so() -> None:
    slurm = RecordedSlurm()
    slurm.answers["/openapi/v3"] = lambda _: (401, b"Authentication failure")
    with pytest.raises(Unavailable, match="token"):
        await Dialects(slurm.rest(), known_schemas(), ManualClock()).live()


@pytest.mark.parametrize(
    "body", [b"", b"<html>", b"[]", b'{"paths": 3}', b'{"paths": {"/slurm/v0.0.38/jobs": 3}}']
)
async def test_a_description_that_is_none_is_unavailable(body: bytes) -> None:
    slurm = RecordedSlurm()
    slurm.answers["/openapi/v3"] = lambda _: (200, body)
    with pytest.raises(Unavailable):
        await Dialects(slurm.rest(), known_schemas(), ManualClock()).live()
