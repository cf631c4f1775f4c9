"""Which rights a child of the node's helper keeps, by the verb it answers."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import cast

import pytest

from lattice.domain.grant import Act, Grant
from lattice.domain.privileged import (
    VERBS,
    Answer,
    DumpStacks,
    Enter,
    EnterSigned,
    HelperRole,
    NoteOutput,
    OpenNoted,
    OpenOutput,
    OpenOutputFile,
    Outcome,
    ProbeMounts,
    Question,
    ReadTasks,
    Rejoin,
    RejoinSigned,
    WatchCounters,
    verb_of,
)
from lattice.helper.judge import AskedGrant
from lattice.helper.main import _node
from lattice.helper.privilege import Capability, Kernel
from lattice.helper.probe_base import JobFinder, ProbeSlots
from lattice.helper.probing_verbs import Probing
from lattice.helper.terminal_verbs import Attaching


class _Kernel(Kernel):
    """Writes down what it is told to keep."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[Collection[int]] = []

    def set_capabilities(self, kept: Collection[int]) -> None:
        self.kept.append(tuple(kept))


@pytest.mark.spec("AUTH-9")
@pytest.mark.threat("helper")
def test_whoever_reads_can_join_no_namespace() -> None:
    kernel = _Kernel()
    grant = Grant(
        id="0" * 32, act=Act.READ_OUTPUT, place="n1", subject="s", user="nobody-of-that-name",
        job_id=1, issued=0, expires=1,
    )  # fmt: skip
    asked = AskedGrant(VERBS["open_output"], OpenOutput((1,)), grant)
    _node(kernel, None, None)(asked, ())
    assert kernel.kept == [(Capability.SETUID, Capability.SETGID, Capability.SYS_PTRACE)]


@pytest.mark.spec("AUTH-9")
@pytest.mark.threat("counting-child")
def test_whoever_watches_counters_can_only_look() -> None:
    kernel = _Kernel()
    asked = AskedGrant(VERBS["watch_counters"], WatchCounters(), None)
    answer, passed = _node(kernel, None, None)(asked, ())
    assert (answer.outcome, passed) == (Outcome.DONE, ())
    assert kernel.kept == [(Capability.SETUID, Capability.SYS_PTRACE)]
    assert _node(kernel, None, None)(asked, (0,))[0].outcome is Outcome.BAD_QUESTION


@pytest.mark.spec("AUTH-9", "DIAG-6")
@pytest.mark.threat("helper", "looking-child")
@pytest.mark.parametrize(
    ("verb", "question", "more"),
    [
        ("read_tasks", ReadTasks(), ()),
        ("dump_stacks", DumpStacks(1000), (Capability.SYS_ADMIN,)),
        ("probe_mounts", ProbeMounts(1000), (Capability.SYS_ADMIN, Capability.SYS_CHROOT)),
    ],
)
def test_whoever_looks_at_a_job_has_the_rights_for_that_look(
    tmp_path: Path, verb: str, question: Question, more: tuple[Capability, ...]
) -> None:
    kernel = _Kernel()
    grant = Grant(
        id="0" * 32, act=VERBS[verb].act, place="n1", subject="s", user="nobody-of-that-name",
        job_id=1, issued=0, expires=1,
    )  # fmt: skip
    probing = Probing(kernel, JobFinder("n1"), ProbeSlots(tmp_path / "places"), None, dict)
    answer, passed = _node(kernel, None, None, probing)(
        AskedGrant(VERBS[verb], question, grant), ()
    )
    assert (answer.outcome, passed) == (Outcome.ACCOUNT_REFUSED, ())
    assert kernel.kept == [(Capability.SETUID, Capability.SETGID, Capability.SYS_PTRACE, *more)]


_QUESTIONS: tuple[Question, ...] = (
    Enter("0" * 32, (), "xterm", 24, 80, "", False),
    EnterSigned("0" * 32, (), "xterm", 24, 80, "", False),
    Rejoin("0" * 32),
    RejoinSigned("0" * 32),
    ProbeMounts(1000),
    ReadTasks(),
    DumpStacks(1000),
    WatchCounters(),
    OpenOutput((1,)),
    OpenOutputFile("/x"),
    OpenNoted(1, 0, 0),
    NoteOutput(1, (2_000_000_000,)),
)
_OF_THE_CLOCK = {"challenge", "set_clock"}
"""Answered by the helper itself, without a child."""


class _Attaching:
    """Enters nothing. What a child gives up on its way in, the tests of entering show."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel

    def enter(self, *_: object) -> tuple[Answer, Sequence[int]]:
        return Answer(outcome=Outcome.FAILED), ()

    def rejoin(self, *_: object) -> tuple[Answer, Sequence[int]]:
        self._kernel.set_capabilities(())
        return Answer(outcome=Outcome.FAILED), ()


@pytest.mark.spec("AUTH-9")
@pytest.mark.threat("helper")
def test_four_kinds_of_children_alone_can_join_a_namespace(tmp_path: Path) -> None:
    able = set()
    for question in _QUESTIONS:
        kernel, verb = _Kernel(), verb_of(question)
        grant = Grant(
            id="0" * 32, act=verb.act, place="n1", subject="s",
            user="nobody-of-that-name", job_id=1, issued=0, expires=1,
        )  # fmt: skip
        probing = Probing(kernel, JobFinder("n1"), ProbeSlots(tmp_path / "places"), None, dict)
        attaching = cast("Attaching", _Attaching(kernel))
        _node(kernel, None, attaching, probing)(AskedGrant(verb, question, grant), ())
        if not kernel.kept or Capability.SYS_ADMIN in kernel.kept[0]:
            able.add(verb.name)
    assert able == {"enter", "enter_signed", "probe_mounts", "dump_stacks"}
    asked = {verb_of(question).name for question in _QUESTIONS}
    of_nodes = {verb.name for verb in VERBS.values() if verb.role is HelperRole.NODE}
    assert asked == of_nodes - _OF_THE_CLOCK
