"""Converts facts and stacks of a job between dataclasses and protobuf. Both ends use it.

A message has the fields of its dataclass, by name. Invalid facts raise `BadFacts`; a fact of an
unknown kind is left out.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
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
    PeerFact,
    RankStack,
    StackFrame,
    StackLanguage,
    TaskFact,
    TransportFact,
)
from lattice.domain.probed import MOST_FRAMES
from lattice.wire.v1 import facts_pb2 as pb

MOST_FACTS = 512
_LONGEST_TEXT = 512
_EARLIEST_S = 1e9
_LATEST_S = 1e11
_LONGEST_WAIT_S = 60.0
FACTS_UNKNOWN = pb.FactsTell(unknown=True).SerializeToString()
STACKS_UNKNOWN = pb.StacksTell(unknown=True).SerializeToString()
"""Answers of a node that does not have the attempt."""
_T = TypeVar("_T")
_M = TypeVar("_M", bound=Message)


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
class RunFacts:
    """Facts of a run of the job that began at this time, by the servers' clock."""

    began: float
    facts: NodeFacts


@dataclass(frozen=True, slots=True)
class StacksFailed:
    """Why there are no stacks."""

    reason: str


@dataclass(frozen=True, slots=True)
class StacksEnd:
    """The last message; `began` is when that run of the job began."""

    began: float


StackNews: TypeAlias = RankStack | StacksFailed | StacksEnd


def facts_opening(asked: FactsAsked) -> bytes:
    return _filled(pb.FactsOpening(), asked).SerializeToString()


def facts_opening_of(opening: bytes) -> FactsAsked:
    """Parse a request. Raises `BadFacts`."""
    message = _parsed(pb.FactsOpening, opening)
    if not 0 < message.within_s <= _LONGEST_WAIT_S:
        raise BadFacts("The question has no time.")
    _check_job(message.job_id, message.started)
    return _made(message, FactsAsked)


def stacks_opening(asked: StacksAsked) -> bytes:
    return _filled(pb.StacksOpening(), asked).SerializeToString()


def stacks_opening_of(opening: bytes) -> StacksAsked:
    """Parse a request. Raises `BadFacts`."""
    message = _parsed(pb.StacksOpening, opening)
    _check_job(message.job_id, message.started)
    return _made(message, StacksAsked)


def facts_message(began: float, facts: NodeFacts) -> bytes:
    message = pb.NodeFactsTold(began=began, time=facts.time)
    for name, value in (
        ("clock_ahead_s", facts.clock_ahead_s),
        ("last_output", facts.last_output),
    ):
        if value is not None:
            setattr(message, name, value)
    message.addresses.extend(each[:_LONGEST_TEXT] for each in facts.addresses[:MOST_FACTS])
    for name in ("links", "mounts", "tasks", "gpus", "peers", "absences"):
        for each in getattr(facts, name)[:MOST_FACTS]:
            _filled(getattr(message, name).add(), each)
    if facts.transport is not None:
        _filled(message.transport, facts.transport)
        message.transport.SetInParent()
    return pb.FactsTell(facts=message).SerializeToString()


def facts_of(payload: bytes, node: str) -> RunFacts | None:
    """Parse an answer; None if the node does not have the attempt. Raises `BadFacts`."""
    message = _parsed(pb.FactsTell, payload)
    if message.WhichOneof("tell") != "facts":
        return None
    answer = message.facts
    if not _is_moment(answer.began) or not _is_moment(answer.time):
        raise BadFacts("facts of no moment")
    output = _real(answer, "last_output")
    if output is not None and not _is_moment(output):
        raise BadFacts("output at no moment")
    facts = NodeFacts(
        node=node,
        time=answer.time,
        links=tuple(_link(each) for each in _few(answer.links) if each.kind in _LINK_KINDS),
        transport=_made(answer.transport, TransportFact) if answer.HasField("transport") else None,
        mounts=tuple(_made(each, MountFact) for each in _few(answer.mounts)),
        tasks=tuple(_made(each, TaskFact) for each in _few(answer.tasks)),
        gpus=tuple(_made(each, GpuFact) for each in _few(answer.gpus)),
        peers=tuple(_made(each, PeerFact) for each in _few(answer.peers)),
        addresses=tuple(each[:_LONGEST_TEXT] for each in _few(answer.addresses)),
        clock_ahead_s=_real(answer, "clock_ahead_s"),
        last_output=output,
        absences=tuple(_absence(each) for each in _few(answer.absences) if each.kind in _KINDS),
    )
    return RunFacts(answer.began, facts)


def stack_message(stack: RankStack) -> bytes:
    message = _filled(pb.StackTold(), stack, without=("node", "frames"))
    for frame in stack.frames[:MOST_FRAMES]:
        _filled(message.frames.add(), frame)
    return pb.StacksTell(stack=message).SerializeToString()


def stacks_failed_message(reason: str) -> bytes:
    return pb.StacksTell(failed=reason[:_LONGEST_TEXT]).SerializeToString()


def stacks_end_message(began: float) -> bytes:
    return pb.StacksTell(end=pb.StacksEnd(began=began)).SerializeToString()


def stack_news_of(payload: bytes, node: str) -> StackNews | None:
    """Parse an answer; None if the node does not have the attempt. Raises `BadFacts`."""
    message = _parsed(pb.StacksTell, payload)
    which = message.WhichOneof("tell")
    if which == "failed":
        return StacksFailed(message.failed[:_LONGEST_TEXT])
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
    values = _values(message, ("rank", "pid", "state", "waits_in", "trouble", "command"))
    frames = tuple(_made(each, StackFrame) for each in message.frames)
    return RankStack(node=node, language=language, frames=frames, **values)


def _link(message: pb.LinkTold) -> LinkFact:
    names = [each for each in _names(LinkFact) if each not in ("kind", "of_job")]
    of_job = _made(message.of_job, LinkCounts) if message.HasField("of_job") else None
    return LinkFact(kind=LinkKind(message.kind), of_job=of_job, **_values(message, names))


def _absence(message: pb.FactAbsenceTold) -> FactAbsence:
    values = _values(message, ("reason", "subject", "last_error"))
    return FactAbsence(kind=FactKind(message.kind), **values)


def _made(message: Any, kind: type[_T]) -> _T:
    """Build a fact or request that has only numbers and texts."""
    return kind(**_values(message, _names(kind)))


def _values(message: Any, names: Iterable[str]) -> dict[str, Any]:
    """Return the fields; an absent optional field is None. Raises `BadFacts`."""
    found: dict[str, Any] = {}
    optional = _optional(message.DESCRIPTOR)
    for name in names:
        if name in optional and not message.HasField(name):
            found[name] = None
            continue
        value = getattr(message, name)
        if isinstance(value, float) and not (math.isfinite(value) and value >= 0):
            raise BadFacts(f"{name} is no amount")
        found[name] = value[:_LONGEST_TEXT] if isinstance(value, str) else value
    return found


def _names(kind: Any) -> list[str]:
    return [each.name for each in fields(kind)]


@cache
def _optional(kind: Descriptor) -> frozenset[str]:
    """Return the fields that may be absent."""
    return frozenset(each.name for each in kind.fields if each.has_presence)


def _real(message: Any, name: str) -> float | None:
    value = getattr(message, name) if message.HasField(name) else None
    if value is not None and not math.isfinite(value):
        raise BadFacts(f"{name} is no number")
    return value


def _filled(message: _M, fact: Any, *, without: Collection[str] = ()) -> _M:
    """Copy the fact's fields into the message; None stays absent."""
    for each in fields(fact):
        value = getattr(fact, each.name)
        if value is None or each.name in without:
            continue
        if isinstance(value, LinkCounts):
            getattr(message, each.name).SetInParent()
            _filled(getattr(message, each.name), value)
        else:
            short = value[:_LONGEST_TEXT] if isinstance(value, str) else value
            setattr(message, each.name, short)
    return message


def _parsed(kind: type[_M], raw: bytes) -> _M:
    try:
        return kind.FromString(raw)
    except DecodeError:
        raise BadFacts("It can't be read.") from None


def _few(facts: Any) -> Any:
    if len(facts) > MOST_FACTS:
        raise BadFacts("more facts than a node can have")
    return facts


def _check_job(job_id: int, started: float) -> None:
    if not job_id or not 0 <= started < _LATEST_S:
        raise BadFacts("The question names no job.")


def _is_moment(seconds: float) -> bool:
    return _EARLIEST_S < seconds < _LATEST_S


_KINDS = frozenset(each.value for each in FactKind)
_LINK_KINDS = frozenset(each.value for each in LinkKind)
