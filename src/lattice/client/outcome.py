"""The end of a terminal session as an exit code or an error. Pure."""

from __future__ import annotations

from lattice.base.errors import JobEnded, LatticeError, PermissionRefused, Unavailable
from lattice.domain.terminal import EndCause, Exit
from lattice.features.attach.model import Ended, EndReason

_REFUSED = frozenset({EndReason.TOKEN_EXPIRED, EndReason.REFUSED})
_AGAIN = "The job goes on. `lattice attach` begins a new session."
_TAKEN_OFF = frozenset({EndReason.PREEMPTED, EndReason.REQUEUED})
_ONCE_IT_RUNS = "`lattice attach` begins a new session once it runs again."
_MESSAGES = {
    EndReason.EXITED: "the shell has ended",
    EndReason.FAILED: "nothing could be started in the job",
    EndReason.CLIENT_LOST: "the session was given up: nobody came back in time",
    EndReason.JOB_ENDED: "the job has ended",
    EndReason.PREEMPTED: "the allocation was preempted",
    EndReason.REQUEUED: "the allocation was requeued",
    EndReason.NODE_LOST: "connection to node lost — attach session ended",
    EndReason.TOKEN_EXPIRED: "your sign-in ended, and the session with it",
    EndReason.CLOSED: "the session was closed",
    EndReason.SHELL_LOST: "the shell on the node is gone — attach session ended",
    EndReason.REPLACED: "another client goes on with this session",
    EndReason.REFUSED: "the session may not go on",
    EndReason.UNRECORDED: "recording impossible — attach session ended",
    EndReason.OTHER: "the server ended the session",
}


def exit_code(exit_: Exit | None, end: Ended | LatticeError | None) -> int:
    """The remote program's exit code if known; otherwise raises what ended it."""
    if exit_ is not None and exit_.code is not None:
        return exit_.code
    if isinstance(end, LatticeError):
        raise end
    if exit_ is not None and (end is None or end.reason is EndReason.EXITED):
        raise _by_cause(exit_)
    if end is None:
        raise Unavailable("The session ended and nobody said how.", hint=_AGAIN)
    message = end.words or _MESSAGES[end.reason]
    if end.reason is EndReason.JOB_ENDED:
        raise JobEnded(message)
    if end.reason in _REFUSED:
        hint = "`lattice login` signs in anew." if "sign" in message else None
        raise PermissionRefused(message, hint=hint)
    if end.reason in {EndReason.FAILED, EndReason.NODE_LOST}:
        raise Unavailable(message)
    if end.reason in _TAKEN_OFF:
        # The server's own text has the advice.
        raise Unavailable(message, hint=None if end.words else _ONCE_IT_RUNS)
    raise Unavailable(message, hint=_AGAIN)


def _by_cause(exit_: Exit) -> LatticeError:
    if exit_.cause is EndCause.JOB_ENDED:
        return JobEnded(exit_.words or _MESSAGES[EndReason.JOB_ENDED])
    if exit_.cause is EndCause.FAILED:
        return Unavailable(exit_.words or _MESSAGES[EndReason.FAILED])
    if exit_.cause is EndCause.CLIENT_LOST:
        return Unavailable(exit_.words or _MESSAGES[EndReason.CLIENT_LOST])
    return Unavailable(exit_.words or "The shell ended, and its code is not known.")
