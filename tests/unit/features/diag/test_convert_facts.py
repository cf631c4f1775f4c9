"""Facts and stacks over the wire: what is not known stays unknown, what can't be is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.domain.jobfacts import (
    FactAbsence,
    FactKind,
    GpuFact,
    LinkCounts,
    LinkFact,
    LinkKind,
    MountFact,
    NodeFacts,
    RankStack,
    StackFrame,
    StackLanguage,
    TaskFact,
    TransportFact,
)
from lattice.domain.pipe import LARGEST_MESSAGE_BYTES
from lattice.features.diag.convert import (
    FACTS_UNKNOWN,
    STACKS_UNKNOWN,
    BadFacts,
    FactsAsked,
    RunFacts,
    StacksAsked,
    StacksEnd,
    StacksFailed,
    facts_message,
    facts_of,
    facts_opening,
    facts_opening_of,
    stack_message,
    stack_news_of,
    stacks_end_message,
    stacks_failed_message,
    stacks_opening,
    stacks_opening_of,
)
from lattice.wire.v1 import facts_pb2 as pb

BEGAN, NOW = 1_794_700_000.0, 1_794_700_060.0
_words = st.text(st.characters(codec="utf-8"), max_size=20)
_amounts = st.none() | st.floats(0, 1e15)
_moments = st.floats(1.1e9, 9e9)
_links = st.builds(
    LinkFact,
    name=_words,
    kind=st.sampled_from(LinkKind),
    up=st.booleans(),
    speed_bits=_amounts,
    errors=_amounts,
    waits=_amounts,
    waits_unit=_words,
    downs=_amounts,
    of_job=st.none() | st.builds(LinkCounts, seconds=st.floats(0, 1e6), errors=_amounts),
)
_mounts = st.builds(
    MountFact, path=_words, kind=_words, source=_words, answered_s=_amounts, waited_s=_amounts,
    trouble=_words, latency_s=_amounts, retransmits=_amounts,
)  # fmt: skip
_tasks = st.builds(
    TaskFact, rank=st.none() | st.integers(0, 10**9), pid=st.integers(1, 2**22), state=_words,
    cpu_seconds=_amounts, started=st.none() | _moments, step=_words,
    python_unbuffered=st.none() | st.booleans(), output_piped=st.none() | st.booleans(),
)  # fmt: skip
_gpus = st.builds(
    GpuFact,
    uuid=_words,
    health=_words,
    pcie_width=st.none() | st.integers(1, 32),
    nvlinks=st.none() | st.integers(0, 36),
    nvlink_bytes_s=_amounts,
)
_absences = st.builds(
    FactAbsence, st.sampled_from(FactKind), reason=_words, subject=_words, last_error=_words
)
_facts = st.builds(
    NodeFacts,
    node=st.just("n1"),
    time=_moments,
    links=st.lists(_links, max_size=3).map(tuple),
    transport=st.none() | st.builds(TransportFact, seconds=_amounts, retransmits=_amounts),
    mounts=st.lists(_mounts, max_size=3).map(tuple),
    tasks=st.lists(_tasks, max_size=3).map(tuple),
    gpus=st.lists(_gpus, max_size=3).map(tuple),
    clock_ahead_s=st.none() | st.floats(-1e6, 1e6),
    last_output=st.none() | _moments,
    absences=st.lists(_absences, max_size=3).map(tuple),
)


@given(_facts)
def test_facts_come_back_as_they_were(facts: NodeFacts) -> None:
    assert facts_of(facts_message(BEGAN, facts), "n1") == RunFacts(BEGAN, facts)


@pytest.mark.spec("SRC-2")
def test_zero_is_not_unknown_and_unknown_not_zero() -> None:
    link = LinkFact(name="e", kind=LinkKind.ETHERNET, up=False, errors=0.0, downs=None)
    facts = NodeFacts(node="n1", time=NOW, links=(link,), transport=TransportFact())
    told = facts_of(facts_message(BEGAN, facts), "n1")
    assert told is not None
    assert (told.facts.links[0].errors, told.facts.links[0].downs) == (0.0, None)
    assert told.facts.transport == TransportFact()


@given(st.binary(max_size=200))
def test_garbage_is_refused_or_nothing(raw: bytes) -> None:
    for read in (facts_of, stack_news_of):
        try:
            told = read(raw, "n1")
        except BadFacts:
            continue
        assert told is None or isinstance(told, RunFacts | StacksFailed | RankStack | StacksEnd)
    for opening in (facts_opening_of, stacks_opening_of):
        try:
            opening(raw)
        except BadFacts:
            continue


@pytest.mark.parametrize(
    "spoilt",
    [
        pb.NodeFactsTold(began=0, time=NOW),
        pb.NodeFactsTold(began=BEGAN, time=float("nan")),
        pb.NodeFactsTold(began=BEGAN, time=NOW, last_output=5.0),
        pb.NodeFactsTold(began=BEGAN, time=NOW, clock_ahead_s=float("inf")),
        pb.NodeFactsTold(
            began=BEGAN, time=NOW, links=[pb.LinkTold(kind="ethernet", errors=float("nan"))]
        ),
        pb.NodeFactsTold(began=BEGAN, time=NOW, mounts=[pb.MountTold(answered_s=-1.0)]),
        pb.NodeFactsTold(began=BEGAN, time=NOW, mounts=[pb.MountTold()] * 513),
    ],
)
def test_what_can_not_be_is_refused(spoilt: pb.NodeFactsTold) -> None:
    with pytest.raises(BadFacts):
        facts_of(pb.FactsTell(facts=spoilt).SerializeToString(), "n1")


def test_a_kind_that_is_not_known_here_is_left_out() -> None:
    told = facts_of(
        pb.FactsTell(
            facts=pb.NodeFactsTold(
                began=BEGAN,
                time=NOW,
                links=[pb.LinkTold(name="x", kind="omnipath")],
                absences=[pb.FactAbsenceTold(kind="moods", reason="?")],
            )
        ).SerializeToString(),
        "n1",
    )
    assert told is not None
    assert (told.facts.links, told.facts.absences) == ((), ())


def test_the_largest_facts_fit_into_one_message() -> None:
    mount = MountFact(path="x" * 4096, kind="y" * 99, source="z" * 4096, trouble="t" * 4096)
    task = TaskFact(rank=1, pid=1, state="S", command="c" * 128, waits_in="w" * 128)
    facts = NodeFacts(node="n1", time=NOW, mounts=(mount,) * 64, tasks=(task,) * 128)
    assert len(facts_message(BEGAN, facts)) < LARGEST_MESSAGE_BYTES


def test_a_stack_comes_back_as_it_was() -> None:
    stack = RankStack(
        node="n1", rank=3, pid=42, language=StackLanguage.PYTHON,
        frames=(StackFrame("load", "/x/loader.py", 88), StackFrame("main", "/x/train.py", 1)),
        state="S", waits_in="pipe_read", command="python train.py",
    )  # fmt: skip
    assert stack_news_of(stack_message(stack), "n1") == stack
    bare = replace(stack, rank=None, frames=(), trouble="py-spy is not installed on the node")
    assert stack_news_of(stack_message(bare), "n1") == bare
    assert stack_news_of(stacks_end_message(BEGAN), "n1") == StacksEnd(BEGAN)
    assert stack_news_of(stacks_failed_message("busy"), "n1") == StacksFailed("busy")
    assert stack_news_of(STACKS_UNKNOWN, "n1") is None
    assert facts_of(FACTS_UNKNOWN, "n1") is None


def test_questions_come_back_as_they_were() -> None:
    facts = FactsAsked(job_id=7, started=BEGAN, mounts=b"a", tasks=b"b", within_s=2.5)
    stacks = StacksAsked(job_id=7, started=BEGAN, request=b"c")
    assert facts_opening_of(facts_opening(facts)) == facts
    assert stacks_opening_of(stacks_opening(stacks)) == stacks
    for bad in (
        replace(facts, job_id=0),
        replace(facts, within_s=0.0),
        replace(facts, within_s=1e9),
    ):
        with pytest.raises(BadFacts):
            facts_opening_of(facts_opening(bad))
    with pytest.raises(BadFacts):
        stacks_opening_of(stacks_opening(replace(stacks, started=-1.0)))
