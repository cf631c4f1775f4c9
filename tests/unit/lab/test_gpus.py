"""What the lab's nodes have for GPUs: Slurm's files, and the agents' libraries."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lab import slurm_config
from lab.addresses import NODES
from lab.agent import Agent
from lab.cgroup import ControlGroup, Hierarchies
from lab.gpus import STATE, NodeGpus, NvmlState, uuid_of
from lab.layout import Layout
from lab.room import Room


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    made = Layout("gpus", tmp_path)
    made.make_folders()
    return made


def test_slurm_has_a_device_file_for_every_gpu_it_gives_out(layout: Layout) -> None:
    files = slurm_config.SlurmFiles(layout.state)
    conf = slurm_config.slurm_conf(files, first_job_id=1)
    assert "GresTypes=gpu" in conf
    for node in NODES:
        (line,) = re.findall(rf"^NodeName={node} .*$", conf, re.MULTILINE)
        assert f"Gres=gpu:{slurm_config.GPUS}" in line
    assert f"File={files.devices}/nvidia[0-{slurm_config.GPUS - 1}]" in slurm_config.gres_conf(
        files
    )


def test_n1_has_a_driver_n2_a_broken_one_and_n3_none(layout: Layout) -> None:
    sound, broken, bare = (NodeGpus(node, layout) for node in ("n1", "n2", "n3"))
    for each in (sound, broken, bare):
        each.prepare()
    assert bare.environment == {}
    library = Path(sound.environment["LD_LIBRARY_PATH"]) / "libnvidia-ml.so.1"
    assert library.exists()
    assert "init 9" not in Path(sound.environment[STATE]).read_text()
    assert "init 9" in Path(broken.environment[STATE]).read_text()


def test_every_index_of_slurms_has_a_card_whose_nvml_index_is_another(layout: Layout) -> None:
    gpus = NodeGpus("n1", layout)
    gpus.prepare()
    text = Path(gpus.environment[STATE]).read_text()
    minors = {int(card): int(minor) for card, minor in re.findall(r"gpu (\d+) minor (\d+)", text)}
    assert sorted(minors.values()) == list(range(slurm_config.GPUS))
    assert all(card != minor for card, minor in minors.items())
    assert all(uuid_of(card) in text for card in minors)


def test_what_a_test_changed_is_as_before_after_it(layout: Layout) -> None:
    gpus = NodeGpus("n1", layout)
    gpus.prepare()
    file = Path(gpus.environment[STATE])
    before = file.read_text()
    with gpus.changed() as cards:
        assert isinstance(cards, NvmlState)
        cards.xid(0, 79)
        assert "xid 0 79" in file.read_text()
        gpus.prepare()
        assert "xid 0 79" in file.read_text(), "an agent that starts anew finds it still"
    assert file.read_text() == before


def test_the_agent_of_n1_is_started_with_the_library_on_its_path(
    layout: Layout, tmp_path: Path
) -> None:
    hierarchies = Hierarchies((tmp_path,), tmp_path)
    room = Room(ControlGroup(hierarchies, layout.cgroup("n1"), everywhere=False), {})
    assert STATE in Agent("n1", layout, room).environment
    assert STATE not in Agent("n3", layout, room).environment
