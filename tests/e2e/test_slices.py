"""A job in a GPU slice: its figures come from the guest over SSH, and never from the host."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from lab.files import give
from lab.gpus import uuid_of
from lab.laboratory import Lab
from lab.slice_guest import NamespaceGuest, SliceGuest, running_guest
from lab.slice_vm import VirtualGuest
from lab.slurm_config import GPUS
from lab.users import AGENT_USER
from lattice.adapters import guest_ssh
from tests.e2e.people import Person
from tests.e2e.put_right import administrator
from tests.e2e.topped import debugged, top
from tests.eventually import eventually

pytestmark = pytest.mark.lab
SLEEP = "sleep 600"
NODE = "n1"
TIMEOUT_S = 10.0
FIRST_CARD = 40
"""The cards of the guest have other UUIDs than those that the node's driver serves."""


IN_VM = pytest.param(VirtualGuest, id="vm", marks=[pytest.mark.vm, pytest.mark.timeout(600)])


@contextmanager
def slice_on(lab: Lab, kind: type[SliceGuest]) -> Iterator[SliceGuest]:
    """All GPUs of the node are in one slice while the context lasts."""
    agent = lab.slurm.nodes[NODE].agent
    folder = lab.layout.state / "slice"
    namespace = lab.layout.network_namespace(NODE)
    name = f"sl-{lab.layout.name}"
    with running_guest(kind(folder, name, 1, cards=GPUS, host=namespace)) as guest:
        for card in range(GPUS):
            guest.nvml.card(card, uuid=uuid_of(FIRST_CARD + card), utilization=41, power=123_000)
        key = agent.folder / "slice.key"
        key.write_bytes(guest.key_file.read_bytes())
        key.chmod(0o600)
        give(key, AGENT_USER)
        agent.changes["slices"] = [
            {
                "name": "blue",
                "gpus": list(range(GPUS)),
                "address": guest.address,
                "host_key": guest.host_key,
                "key_file": str(key),
                "user": "root",
                "bridge": "br-slices",
                "netdata": "http://n1:19999",
                "timeout_s": TIMEOUT_S,
            }
        ]
        agent.stop()
        try:
            agent.start()
            yield guest
        finally:
            agent.changes.pop("slices")
            agent.stop()
            agent.start()


def values(answer: dict[str, Any], metric: str) -> set[float]:
    cells = (each for row in answer.get("rows", ()) for each in row["cells"])
    return {
        each["value"] for each in cells if each["metric"] == metric and each["value"] is not None
    }


@pytest.mark.spec("SRC-3", "SLICE-1", "SLICE-2")
@pytest.mark.parametrize(
    "kind", [pytest.param(NamespaceGuest, id="namespace", marks=pytest.mark.story), IN_VM]
)
def test_a_job_in_a_slice_is_measured_in_its_guest_alone(
    lab: Lab, alice: Person, kind: type[SliceGuest]
) -> None:
    asked = ("-w", NODE, f"--gres=gpu:{GPUS}")
    with slice_on(lab, kind) as guest, debugged(lab, alice, *asked, wrap=SLEEP) as job:
        answer = eventually(
            lambda: top(alice, job, "--per-gpu"),
            lambda seen: len(values(seen, "gpu_utilization")) > 0,
        )
        assert values(answer, "gpu_utilization") == {41.0}
        shown = {each["gpu_uuid"] for each in answer["rows"]} - {""}
        assert shown == {uuid_of(FIRST_CARD + card) for card in range(GPUS)}
        assert answer["origin"]["source"] == "slice_guest"
        eventually(
            lambda: alice.tries("top", str(job), "--once").out,
            lambda seen: "source: slice_guest" in seen,
        )
        (mine,) = eventually(
            lambda: alice.asks("status", str(job))["slices"],
            lambda seen: [each["guest"]["state"] for each in seen] == ["healthy"],
        )
        assert mine["node"] == NODE
        assert [each["name"] for each in mine["guest"]["ports"]] == ["eth0"]
        facts = {each["name"]: each for each in mine["guest"]["start"]["facts"]}
        assert facts["memory_bytes"]["number"] == guest.memory_bytes
        assert facts["driver_seconds"]["number"] > 0
        text = alice.tries("status", str(job)).out + alice.tries("nodes", NODE, "-o", "json").out
        text += alice.tries("top", str(job), "--once", "-o", "json").out
        assert "blue" in text
        assert not any(each in text for each in (guest.address, "br-slices", "19999"))
        card = administrator(lab).tries("nodes", NODE).out
        assert "at its start: " in card
        assert f"guest at {guest.address}; bridge br-slices; Netdata http://n1:19999" in card
        guest.stop()
        _nothing_is_measured(alice, job, guest_ssh.REFUSED)


@pytest.mark.spec("SRC-3", "SLICE-1")
@pytest.mark.parametrize("kind", [pytest.param(NamespaceGuest, id="namespace"), IN_VM])
def test_a_guest_that_hangs_or_is_another_machine_has_no_figures(
    lab: Lab, alice: Person, kind: type[SliceGuest]
) -> None:
    asked = ("-w", NODE, f"--gres=gpu:{GPUS}")
    with slice_on(lab, kind) as guest, debugged(lab, alice, *asked, wrap=SLEEP) as job:
        eventually(
            lambda: top(alice, job, "--per-gpu"),
            lambda seen: len(values(seen, "gpu_utilization")) > 0,
        )
        guest.freeze()
        _nothing_is_measured(alice, job, guest_ssh.SILENT.format(TIMEOUT_S))
        guest.new_host_key()
        guest.restart()
        _nothing_is_measured(alice, job, guest_ssh.CHANGED)


def _nothing_is_measured(alice: Person, job: int, reason: str) -> None:
    silent = eventually(
        lambda: alice.tries("top", str(job), "--once", "-o", "json", "--per-node"),
        lambda said: said.code != 0 and reason in said.out,
    )
    answer = json.loads(silent.out)
    assert values(answer, "gpu_utilization") == values(answer, "cpu_utilization") == set()
