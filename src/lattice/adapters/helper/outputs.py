"""The port `OutputOpener` by the root helper beside the agent.

The helper's answer is not trusted: there must be as many descriptors as files, and each must be the
stated file. After any failure all descriptors are closed. The agent passes its own inotify
instance, and the helper adds watches to it that only the owner may have.
"""

from __future__ import annotations

import ctypes
import json
import os
import stat
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, TypeAlias

from lattice.adapters.helper.channel import HelperChannel
from lattice.base import packet
from lattice.base.errors import (
    DataUnavailable,
    InternalError,
    LatticeError,
    PermissionRefused,
    Unavailable,
    UsageError,
)
from lattice.base.text import inert
from lattice.domain.outputs import OpenedOutputs, OutputFile, OutputHolder, SkippedOutput
from lattice.domain.privileged import (
    MOST_OUTPUTS,
    Answer,
    NoteOutput,
    OpenNoted,
    OpenOutput,
    OpenOutputFile,
    Outcome,
    Question,
)

_LONGEST_COUNT = 6
_LOG_HINT = "An administrator finds the reason in the log of lattice-helper on that node."


Outputs: TypeAlias = tuple[tuple[OutputFile, ...], tuple[SkippedOutput, ...], bool]
"""Opened, not opened, and whether there are more."""


class BadOutputs(Exception):
    """The answer does not match the descriptors that came with it."""


class HelperOutputs:
    """Sends a grant that the server signed for exactly this request."""

    def __init__(self, channel: HelperChannel) -> None:
        self._channel = channel

    async def open_output(self, grant: str, pids: Sequence[int]) -> OpenedOutputs:
        return await self._ask(grant, OpenOutput(tuple(pids)))

    async def open_output_file(self, grant: str, path: str) -> OpenedOutputs:
        return await self._ask(grant, OpenOutputFile(path))

    async def note_output(self, job_id: int, pids: Sequence[int]) -> int:
        question = NoteOutput(job_id, tuple(pids))
        _askable(question)
        answer, passed = await self._answer("", question, None)
        packet.close_all(passed)
        if answer.outcome is not Outcome.DONE:
            raise _error(answer, noting=True)
        count = answer.output
        if not count.isascii() or not count.isdecimal() or len(count) > _LONGEST_COUNT:
            raise InternalError("lattice-helper said what can't be: no count.", hint=_LOG_HINT)
        return int(count)

    async def open_noted(
        self, grant: str, since_ms: int, until_ms: int, skip: int
    ) -> OpenedOutputs:
        return await self._ask(grant, OpenNoted(since_ms, until_ms, skip))

    async def _ask(
        self, grant: str, question: OpenOutput | OpenOutputFile | OpenNoted
    ) -> OpenedOutputs:
        _askable(question)
        with ExitStack() as held:
            notices = _notices()
            if notices is not None:
                held.callback(os.close, notices)
            answer, passed = await self._answer(grant, question, notices)
            held.callback(packet.close_all, passed)
            if answer.outcome is not Outcome.DONE:
                raise _error(answer, noting=isinstance(question, OpenNoted))
            files, skipped, more = _checked(answer.output, passed)
            held.pop_all()
        if notices is not None and all(each.watch < 0 for each in files):
            os.close(notices)
            notices = None
        return OpenedOutputs(notices, files, skipped, more)

    async def _answer(
        self, grant: str, question: Question, notices: int | None
    ) -> tuple[Answer, list[int]]:
        try:
            beside = () if notices is None else (notices,)
            return await self._channel.ask(grant, question, beside, most_descriptors=MOST_OUTPUTS)
        except Unavailable:
            raise Unavailable(
                "lattice-helper on the node does not answer.",
                hint="An administrator starts lattice-helper on that node again.",
            ) from None
        except OSError as error:
            raise Unavailable(
                f"lattice-helper did not say what it opened: {str(error) or 'no answer in time'}.",
                hint="A file system of the node may hang. " + _LOG_HINT,
            ) from None


def _notices() -> int | None:
    """A new inotify instance; None if this user has as many as the kernel allows."""
    made = int(ctypes.CDLL(None).inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
    return made if made >= 0 else None


def _askable(question: OpenOutput | OpenOutputFile | NoteOutput | OpenNoted) -> None:
    if fault := question.fault():
        raise UsageError(f"The helper can't be asked that: {fault}.")


def _checked(text: str, passed: Sequence[int]) -> Outputs:
    try:
        return read_outputs(text, passed)
    except BadOutputs as error:
        message = f"lattice-helper said what can't be: {error}."
        raise InternalError(message, hint=_LOG_HINT) from None


def read_outputs(text: str, passed: Sequence[int]) -> Outputs:
    """The opened and the skipped files. Raises `BadOutputs`, and then closes nothing."""
    document = _json(text)
    more = document.pop("more", False) if type(document) is dict else False
    document = _object(document, {"files", "skipped"})
    if type(more) is not bool or type(document["files"]) is not list:
        raise BadOutputs("the answer has fields of other types")
    if len(passed) != len(document["files"]):
        raise BadOutputs("there are not as many descriptors as files")
    files = tuple(_file(each, fd) for each, fd in zip(document["files"], passed, strict=True))
    return files, _skipped(document["skipped"]), more


_FIELDS: dict[str, type] = {
    "holders": list, "dev": int, "ino": int, "flags": int, "position": int, "size": int,
    "path": str, "watch": int, "comm": str,
}  # fmt: skip


def _file(entry: Any, fd: int) -> OutputFile:
    found = _object(entry, {*_FIELDS, "born"})
    if any(type(found[name]) is not kind for name, kind in _FIELDS.items()):
        raise BadOutputs("a file has fields of other types")
    if type(found["born"]) not in (float, int, type(None)):
        raise BadOutputs("a file has fields of other types")
    real = os.fstat(fd)
    if not stat.S_ISREG(real.st_mode) or (real.st_dev, real.st_ino) != (found["dev"], found["ino"]):
        raise BadOutputs("a descriptor is of another file")
    return OutputFile(
        fd=fd,
        device=found["dev"],
        inode=found["ino"],
        born=found["born"],
        size=found["size"],
        path=inert(found["path"]),
        holders=tuple(_ranked_holder(each) for each in found["holders"]),
        comm=inert(found["comm"]),
        flags=found["flags"],
        position=found["position"],
        watch=found["watch"],
    )


def _skipped(entries: Any) -> tuple[SkippedOutput, ...]:
    if type(entries) is not list:
        raise BadOutputs("the answer has fields of other types")
    found = []
    for each in entries:
        if type(each) is not list or [type(part) for part in each] != [int, int, str]:
            raise BadOutputs("what was skipped can't be read")
        found.append(SkippedOutput(_holder(each[:2]), inert(each[2])))
    return tuple(found)


def _holder(entry: Any) -> OutputHolder:
    if type(entry) is not list or [type(part) for part in entry] != [int, int]:
        raise BadOutputs("a holder can't be read")
    return OutputHolder(entry[0], entry[1])


def _ranked_holder(entry: Any) -> OutputHolder:
    kinds = [type(part) for part in entry] if type(entry) is list else []
    if kinds == [int, int, int]:
        return OutputHolder(entry[0], entry[1], max(-1, entry[2]))
    if kinds == [int, int, int, str, bool]:
        return OutputHolder(entry[0], entry[1], max(-1, entry[2]), inert(entry[3]), entry[4])
    raise BadOutputs("a holder can't be read")


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise BadOutputs("the answer is no JSON") from None


def _object(value: Any, names: set[str]) -> dict[str, Any]:
    if type(value) is not dict or value.keys() != names:
        raise BadOutputs("the answer has other fields")
    return value


def _error(answer: Answer, *, noting: bool = False) -> LatticeError:
    message = inert(answer.message)
    if noting and answer.outcome in {Outcome.NOT_OFFERED, Outcome.BAD_QUESTION}:
        # An older helper does not have the verb.
        return DataUnavailable(f"lattice-helper on the node keeps no notes: {message}.")
    known: dict[Outcome, LatticeError] = {
        Outcome.FAILED: DataUnavailable(f"The output can't be read: {message}."),
        Outcome.ACCOUNT_REFUSED: PermissionRefused(f"Nothing is read for this user: {message}."),
        Outcome.BAD_QUESTION: UsageError(f"lattice-helper can't take this: {message}."),
        Outcome.BUSY: Unavailable(
            f"lattice-helper on the node is busy: {message}.", hint="Try again in a few seconds."
        ),
        Outcome.REFUSED: Unavailable(
            "lattice-helper on the node does not accept this.", hint=_LOG_HINT
        ),
        Outcome.UNTIMELY: Unavailable(f"The output can't be read: {message}.", hint=_LOG_HINT),
        Outcome.NOT_OFFERED: Unavailable(
            "lattice-helper on the node is older than the agent.",
            hint="An administrator brings both to the same version.",
        ),
    }
    failed = InternalError(f"lattice-helper failed: {message}.", hint=_LOG_HINT)
    return known.get(answer.outcome, failed)
