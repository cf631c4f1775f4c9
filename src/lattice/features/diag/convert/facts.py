"""Converts facts about a job between dataclasses and protobuf. Both ends of the wire use it.

A message has the fields of its dataclass, by name. Invalid facts raise `BadFacts`; a fact of an
unknown kind is left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, TypeAlias, TypeVar

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError, Message

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
from lattice.domain.probed import MOST_FRAMES
from lattice.wire.v1 import facts_pb2 as pb

MOST_FACTS = 512
_LONGEST_WORDS = 512
_EARLIEST_S = 1e9
_LATEST_S = 1e11
_LONGEST_WAIT_S = 60.0
_NAMES: dict[type, tuple[str, ...]] = {
    kind: tuple(each.name for each in fields(kind))
    for kind in (StackFrame, GpuFact, LinkCounts, LinkFact, MountFact, TaskFact, TransportFact)
}
_T = TypeVar("_T")


class BadFacts(Exception):
    """A message that is no valid answer of a node or request of a server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FactsAsked:
    """A request for the facts of an attempt, with the helper's requests."""

    job_id: int
    started: float
    mounts: bytes = b""
    tasks: bytes = b""
    within_s: float = 5.0
    look: bool = False
    """If True, a snapshot is sent as a message before the facts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StacksAsked:
    """A request for the stacks of an attempt, with the helper's request."""

    job_id: int
    started: float
    request: bytes = b""


@dataclass(frozen=True, slots=True)
class ToldFacts:
    """Facts of a run of the job that began at this time, by the servers' clock."""

    began: float
    facts: NodeFacts


@dataclass(frozen=True, slots=True)
class StacksFailed:
    """Why there are no stacks."""

    words: str


@dataclass(frozen=True, slots=True)
class StacksEnd:
    """The last message; `began` is when that run of the job began."""

    began: float


StackNews: TypeAlias = RankStack | StacksFailed | StacksEnd


def facts_opening(asked: FactsAsked) -> bytes:
    told = pb.FactsOpening()
    _fill(told, asked)
    return told.SerializeToString()


def facts_opening_of(opening: bytes) -> FactsAsked:
    """Parse a request. Raises `BadFacts`."""
    told = _parsed(pb.FactsOpening, opening)
    if not 0 < told.within_s <= _LONGEST_WAIT_S:
        raise BadFacts("The question has no time.")
    _check_job(told.job_id, told.started)
    return FactsAsked(
        job_id=told.job_id,
        started=told.started,
        mounts=told.mounts,
        tasks=told.tasks,
        within_s=told.within_s,
        look=told.look,
    )


def stacks_opening(asked: StacksAsked) -> bytes:
    told = pb.StacksOpening()
    _fill(told, asked)
    return told.SerializeToString()


def stacks_opening_of(opening: bytes) -> StacksAsked:
    """Parse a request. Raises `BadFacts`."""
    told = _parsed(pb.StacksOpening, opening)
    _check_job(told.job_id, told.started)
    return StacksAsked(job_id=told.job_id, started=told.started, request=told.request)


def facts_tell(began: float, facts: NodeFacts) -> bytes:
    """Build the message with the facts of a run of the job."""
    told = pb.NodeFactsTold(began=began, time=facts.time)
    for name, value in (
        ("clock_ahead_s", facts.clock_ahead_s),
        ("last_output", facts.last_output),
    ):
        if value is not None:
            setattr(told, name, value)
    for name in ("links", "mounts", "tasks", "gpus", "absences"):
        for each in getattr(facts, name)[:MOST_FACTS]:
            _fill(getattr(told, name).add(), each)
    if facts.transport is not None:
        _fill(told.transport, facts.transport)
        told.transport.SetInParent()
    return pb.FactsTell(facts=told).SerializeToString()


def facts_tell_of(payload: bytes, node: str) -> ToldFacts | None:
    """Parse an answer; None if the node does not have the attempt. Raises `BadFacts`."""
    message = _parsed(pb.FactsTell, payload)
    if message.WhichOneof("tell") != "facts":
        return None
    told = message.facts
    if not _is_moment(told.began) or not _is_moment(told.time):
        raise BadFacts("facts of no moment")
    output = _real(told, "last_output")
    if output is not None and not _is_moment(output):
        raise BadFacts("output at no moment")
    facts = NodeFacts(
        node=node,
        time=told.time,
        links=tuple(_link(each) for each in _few(told.links) if each.kind in _LINK_KINDS),
        transport=_made(told.transport, TransportFact) if told.HasField("transport") else None,
        mounts=tuple(_made(each, MountFact) for each in _few(told.mounts)),
        tasks=tuple(_made(each, TaskFact) for each in _few(told.tasks)),
        gpus=tuple(_made(each, GpuFact) for each in _few(told.gpus)),
        clock_ahead_s=_real(told, "clock_ahead_s"),
        last_output=output,
        absences=tuple(_absence(each) for each in _few(told.absences) if each.kind in _KINDS),
    )
    return ToldFacts(told.began, facts)


def stack_tell(stack: RankStack) -> bytes:
    told = pb.StackTold()
    _fill(told, stack, without=("node", "frames"))
    for frame in stack.frames[:MOST_FRAMES]:
        _fill(told.frames.add(), frame)
    return pb.StacksTell(stack=told).SerializeToString()


def stacks_failed_tell(words: str) -> bytes:
    return pb.StacksTell(failed=words[:_LONGEST_WORDS]).SerializeToString()


def stacks_end_tell(began: float) -> bytes:
    return pb.StacksTell(end=pb.StacksEnd(began=began)).SerializeToString()


def facts_unknown_tell() -> bytes:
    return pb.FactsTell(unknown=True).SerializeToString()


def stacks_unknown_tell() -> bytes:
    return pb.StacksTell(unknown=True).SerializeToString()


def stacks_tell_of(payload: bytes, node: str) -> StackNews | None:
    """Parse an answer; None if the node does not have the attempt. Raises `BadFacts`."""
    message = _parsed(pb.StacksTell, payload)
    which = message.WhichOneof("tell")
    if which == "failed":
        return StacksFailed(message.failed[:_LONGEST_WORDS])
    if which == "end":
        if not _is_moment(message.end.began):
            raise BadFacts("a job that began at no moment")
        return StacksEnd(message.end.began)
    return _stack(message.stack, node) if which == "stack" else None


def _stack(message: pb.StackTold, node: str) -> RankStack:
    if len(message.frames) > MOST_FRAMES or not message.pid:
        raise BadFacts("no stack of a process")
    try:
        language = StackLanguage(message.language)
    except ValueError:
        raise BadFacts("a stack in no language") from None
    told = _values(message, ("rank", "pid", "state", "waits_in", "trouble", "command"))
    frames = tuple(_made(each, StackFrame) for each in message.frames)
    return RankStack(node=node, language=language, frames=frames, **told)


def _link(message: pb.LinkTold) -> LinkFact:
    names = [each for each in _NAMES[LinkFact] if each not in ("kind", "of_job")]
    of_job = _made(message.of_job, LinkCounts) if message.HasField("of_job") else None
    return LinkFact(kind=LinkKind(message.kind), of_job=of_job, **_values(message, names))


def _absence(message: pb.FactAbsenceTold) -> FactAbsence:
    told = _values(message, ("reason", "subject", "last_error"))
    return FactAbsence(kind=FactKind(message.kind), **told)


def _made(message: Any, kind: type[_T]) -> _T:
    """Build a fact that has only numbers and texts."""
    return kind(**_values(message, _NAMES[kind]))


def _values(message: Any, names: Iterable[str]) -> dict[str, Any]:
    """Return the fields; an absent optional field is None. Raises `BadFacts`."""
    told: dict[str, Any] = {}
    optional = _optional(message.DESCRIPTOR)
    for name in names:
        if name in optional and not message.HasField(name):
            told[name] = None
            continue
        value = getattr(message, name)
        if isinstance(value, float) and not (math.isfinite(value) and value >= 0):
            raise BadFacts(f"{name} is no amount")
        told[name] = value[:_LONGEST_WORDS] if isinstance(value, str) else value
    return told


@cache
def _optional(kind: Descriptor) -> frozenset[str]:
    """Return the fields that may be absent."""
    return frozenset(each.name for each in kind.fields if each.has_presence)


def _real(message: Any, name: str) -> float | None:
    value = getattr(message, name) if message.HasField(name) else None
    if value is not None and not math.isfinite(value):
        raise BadFacts(f"{name} is no number")
    return value


def _fill(message: Any, fact: Any, *, without: Iterable[str] = ()) -> None:
    """Copy the fact's fields; None stays absent."""
    left_out = frozenset(without)
    for each in fields(fact):
        value = getattr(fact, each.name)
        if value is None or each.name in left_out:
            continue
        if isinstance(value, LinkCounts):
            getattr(message, each.name).SetInParent()
            _fill(getattr(message, each.name), value)
        else:
            told = value[:_LONGEST_WORDS] if isinstance(value, str) else value
            setattr(message, each.name, told)


_M = TypeVar("_M", bound=Message)


def _parsed(kind: type[_M], raw: bytes) -> _M:
    try:
        return kind.FromString(raw)
    except DecodeError:
        raise BadFacts("It can't be read.") from None


def _few(told: Any) -> Any:
    if len(told) > MOST_FACTS:
        raise BadFacts("more facts than a node can have")
    return told


def _check_job(job_id: int, started: float) -> None:
    if not job_id or not 0 <= started < _LATEST_S:
        raise BadFacts("The question names no job.")


def _is_moment(seconds: float) -> bool:
    return _EARLIEST_S < seconds < _LATEST_S


_KINDS = frozenset(each.value for each in FactKind)
_LINK_KINDS = frozenset(each.value for each in LinkKind)
