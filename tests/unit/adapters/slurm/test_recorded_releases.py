"""The same jobs by Slurm 22.05, 24.11 and 26.05, in every schema version that these serve."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from lattice.adapters.slurm.answer import read_answer
from lattice.adapters.slurm.dialect import choose, offered
from lattice.adapters.slurm.schema.decoder import Schema, known_schemas
from lattice.adapters.slurm.tenancy import Placing
from lattice.domain.accounts import AccountTree
from lattice.domain.allocation import Allocation, ExitCode, State
from lattice.domain.vcluster import Vclusters
from tests.fakes.recorded_slurm import RECORDED

PLACING = Placing("lab", AccountTree(), Vclusters())
KNOWN = {schema.version: schema for schema in known_schemas()}
PLACES = sorted(each for each in RECORDED.glob("*/v*"))
RELEASES = ["22.05", "24.11", "26.05"]
each_place = pytest.mark.parametrize(
    "place", PLACES, ids=lambda place: f"{place.parent.name}-{place.name}"
)
SEEN = {
    "completed": (State.COMPLETED, ExitCode(0)),
    "failed": (State.FAILED, ExitCode(3)),
    "timed-out": (State.TIMEOUT, None),
    "cancelled": (State.CANCELLED, None),
    "node-failed": (State.NODE_FAIL, None),
    "running": (State.RUNNING, None),
    "held": (State.PENDING, None),
    "preempting": (State.RUNNING, None),
}
"""State and exit code; None: not compared."""


def records(place: Any, name: str, key: str) -> list[bytes]:
    answer = read_answer((place / f"{name}.json").read_bytes(), key)
    assert not answer.problems
    return [bytes(each) for each in answer.records]


def live(place: Any) -> dict[str, Allocation]:
    """By id."""
    schema = Schema(place.name)
    found = [schema.job(each, PLACING) for each in records(place, "jobs", "jobs")]
    assert None not in found
    return {each.id: each for each in found if each is not None}


def past(place: Any) -> dict[str, Allocation]:
    """By id."""
    schema = Schema(place.name)
    found = [schema.past_job(each, PLACING) for each in records(place, "past-jobs", "jobs")]
    rows = [each.allocation for each in found if each is not None]
    assert len(rows) == len(found)
    return {each.id: each for each in rows}


def test_every_release_was_recorded_in_every_version_it_serves() -> None:
    found = {release: [p.name for p in PLACES if p.parent.name == release] for release in RELEASES}
    assert found == {
        "22.05": ["v0.0.38"],
        "24.11": ["v0.0.40", "v0.0.41", "v0.0.42"],
        "26.05": ["v0.0.42", "v0.0.43", "v0.0.44", "v0.0.45"],
    }


@pytest.mark.spec("ALLOC-1")
@each_place
def test_states_and_exit_codes_are_the_same(place: Any) -> None:
    by_name = {each.name: each for each in live(place).values()}
    for name, (state, code) in SEEN.items():
        assert by_name[name].state is state, name
        if code is not None:
            assert by_name[name].exit_code == code, name
    assert by_name["killed"].state is State.FAILED
    assert by_name["running"].node_count == 2
    assert by_name["running"].gpus == 2
    assert by_name["running"].comment == "two nodes"
    assert by_name["requeued"].attempt == by_name["preempted"].attempt == 2


@pytest.mark.spec("ALLOC-6")
@each_place
def test_accounting_has_the_ended_ones_with_the_same_states(place: Any) -> None:
    rows = {each.name: each for each in past(place).values()}
    for name in ("completed", "failed", "timed-out", "cancelled", "node-failed"):
        assert rows[name].state is SEEN[name][0], name


@pytest.mark.spec("ALLOC-1")
@pytest.mark.parametrize("release", RELEASES)
def test_all_versions_of_one_release_tell_the_same(release: str) -> None:
    first, *others = (each for each in PLACES if each.parent.name == release)
    told = without_newer_fields(live(first))
    for place in others:
        assert without_newer_fields(live(place)) == told


def without_newer_fields(found: dict[str, Allocation]) -> dict[str, Allocation]:
    """Without what only the newer versions have: expanded paths and unique ids."""
    return {key: replace(each, output="", sluid="") for key, each in found.items()}


@pytest.mark.spec("ALLOC-1")
def test_the_newest_release_has_a_unique_id_for_each_run() -> None:
    newest = RECORDED / "26.05" / "v0.0.45"
    now = live(newest)
    assert all(each.sluid for each in now.values())
    assert len({each.sluid for each in now.values()}) == len(now)
    rows = past(newest)
    again = {each.name for key, each in rows.items() if each.sluid != now[key].sluid}
    assert again == {"requeued", "preempted"}


@each_place
def test_nodes_and_accounts_are_read(place: Any) -> None:
    schema = Schema(place.name)
    nodes = [schema.node(each) for each in records(place, "nodes", "nodes")]
    assert {each.name for each in nodes if each is not None} >= {"n1", "n2", "n3"}
    accounts = [schema.account(each) for each in records(place, "accounts", "accounts")]
    assert {each.name for each in accounts if each is not None} >= {"research", "genomics"}
    rows = [schema.association(each) for each in records(place, "associations", "associations")]
    assert ("research", "alice") in {(each.account, each.user) for each in rows if each}


@each_place
def test_its_own_description_leads_to_it(place: Any) -> None:
    chosen = choose(offered((place / "openapi.json").read_bytes()), KNOWN)
    assert {side: each.version for side, each in chosen.items()} == {
        "slurm": place.name,
        "slurmdb": place.name,
    }


@pytest.mark.spec("ALLOC-7")
def test_a_version_made_from_the_newest_by_renaming_is_read_and_one_without_a_field_is_not() -> (
    None
):
    newest = (RECORDED / "26.05" / "v0.0.45" / "openapi.json").read_text()
    renamed = newest.replace("v0.0.45", "v0.0.46")
    chosen = choose(offered(renamed.encode()), KNOWN)
    assert {each.version for each in chosen.values()} == {"v0.0.46"}
    assert {each.schema.version for each in chosen.values()} == {"v0.0.45"}
    fields = next(
        each for each in offered(renamed.encode()) if each.path == "/slurm/v0.0.46/jobs/"
    ).fields
    assert {"job_id", "job_state", "submit_time"} <= fields
    document = json.loads(renamed)
    document["components"]["schemas"]["v0.0.46_job_info"]["properties"].pop("job_state")
    with pytest.raises(Exception, match="have no job_state"):
        choose(offered(json.dumps(document).encode()), KNOWN)
