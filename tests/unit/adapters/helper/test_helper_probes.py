"""What the helper tells of a job is taken from memory that can't change, or not at all."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from lattice.adapters.helper.channel import HelperChannel
from lattice.adapters.helper.probed import HelperProbes
from lattice.base.errors import (
    DataUnavailable,
    InternalError,
    LatticeError,
    PermissionRefused,
    Unavailable,
)
from lattice.domain.privileged import Answer, Outcome, ReadTasks, write_request
from lattice.domain.probed import (
    MountReport,
    MountsReport,
    TaskReport,
    write_mounts,
    write_reports,
)
from lattice.helper.probe_base import answer_in_memory
from tests.fakes.helper_door import helper_at

TASK = TaskReport(pid=7, step="0", rank=1, state="S")
MOUNTS = MountsReport(
    mounts=(MountReport(path="/", kind="ext4", source="/dev/vda1", answered_s=0.0),)
)
REQUEST = write_request("g", ReadTasks())


async def asked(
    tmp_path: Path, answer: Answer, passed: Sequence[int] = (), *, verb: str = "tasks"
) -> object:
    heard: list[bytes] = []

    def reply(request: bytes) -> tuple[Answer, Sequence[int]]:
        heard.append(request)
        return answer, passed

    async with helper_at(tmp_path / "helper", reply) as path:
        port = HelperProbes(HelperChannel(path, timeout_s=60.0))
        told: object = await getattr(port, verb)(REQUEST)
    assert heard == [REQUEST], "the server's own words go to the helper"
    return told


async def test_what_was_told_is_read(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    answer, passed = answer_in_memory(write_reports([TASK]))
    assert await asked(tmp_path / "a", answer, passed) == (TASK,)
    answer, passed = answer_in_memory(write_mounts(MOUNTS))
    assert await asked(tmp_path, answer, passed, verb="mounts") == MOUNTS


async def test_more_than_a_packet_is_read_whole(tmp_path: Path) -> None:
    long = MountsReport(mounts=MOUNTS.mounts, statistics="x" * 500_000)
    answer, passed = answer_in_memory(write_mounts(long))
    assert await asked(tmp_path, answer, passed, verb="mounts") == long


def unsealed(body: bytes) -> int:
    memory = os.memfd_create("x", os.MFD_ALLOW_SEALING)
    os.write(memory, body)
    return memory


def half_sealed(body: bytes) -> int:
    memory = unsealed(body)
    fcntl.fcntl(memory, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    return memory


def plain_file(body: bytes) -> int:
    file, name = tempfile.mkstemp()
    os.write(file, body)
    Path(name).unlink()
    return file


@pytest.mark.parametrize("made", [unsealed, half_sealed, plain_file])
async def test_memory_that_can_change_is_not_read(tmp_path: Path, made: object) -> None:
    assert callable(made)
    with pytest.raises(InternalError, match="said what can't be"):
        await asked(tmp_path, Answer(outcome=Outcome.DONE), (made(write_reports([TASK])),))


async def test_another_kind_of_answer_is_none(tmp_path: Path) -> None:
    answer, passed = answer_in_memory(write_reports([])[:-1] + b"1]")
    with pytest.raises(InternalError, match="said what can't be"):
        await asked(tmp_path, answer, passed)


@pytest.mark.parametrize("count", [0, 2])
async def test_there_is_one_descriptor(tmp_path: Path, count: int) -> None:
    passed = [answer_in_memory(write_reports([TASK]))[1][0] for _ in range(count)]
    with pytest.raises(InternalError, match="not one descriptor"):
        await asked(tmp_path, Answer(outcome=Outcome.DONE), passed)


@pytest.mark.parametrize(
    ("outcome", "kind"),
    [
        (Outcome.FAILED, DataUnavailable),
        (Outcome.BUSY, Unavailable),
        (Outcome.NOT_OFFERED, Unavailable),
        (Outcome.BAD_QUESTION, Unavailable),
        (Outcome.UNTIMELY, Unavailable),
        (Outcome.ACCOUNT_REFUSED, PermissionRefused),
        (Outcome.REFUSED, PermissionRefused),
        (Outcome.BROKEN, InternalError),
    ],
)
async def test_a_refusal_says_why(
    tmp_path: Path, outcome: Outcome, kind: type[LatticeError]
) -> None:
    with pytest.raises(kind, match="so it is"):
        await asked(tmp_path, Answer(outcome=outcome, message="so it is\x1b"))


async def test_without_a_helper_that_is_said(tmp_path: Path) -> None:
    port = HelperProbes(HelperChannel(tmp_path / "nobody", timeout_s=1.0))
    with pytest.raises(Unavailable, match="does not answer"):
        await port.tasks(REQUEST)
