"""The tree of errors, and the table that maps each to gRPC, HTTP and an exit code.

    LatticeError
    ├── UsageError           the request makes no sense
    ├── LoginRequired        no token, or one that is not valid any more
    ├── PermissionRefused    known caller, act not allowed on any object
    ├── Conflict             somebody else has it, or it is in use
    ├── NotFound             absent, or not the caller's: one answer for both (AUTH-12)
    ├── RateLimited          over a limit; carries retry_after_s where there is one
    ├── Unavailable          an engine or a node does not answer; a retry may help
    ├── DataUnavailable      all parts answer, the data does not exist
    ├── JobEnded             the job ended first
    ├── ConfigurationError   the process can't work with its configuration
    └── InternalError        a defect of Lattice itself

A module raises one of these with a message (what happened) and a hint (what to do). Only the shells
turn them into a status. "No data" is a value, never an error of this tree.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple


class LatticeError(Exception):
    """An error for people: `message` is what happened, `hint` is what to do."""

    code: ClassVar[str] = "internal"

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(LatticeError):
    code = "usage"


class LoginRequired(LatticeError):
    code = "login_required"


class PermissionRefused(LatticeError):
    code = "permission_refused"


class Conflict(LatticeError):
    code = "conflict"


class NotFound(LatticeError):
    code = "not_found"


class RateLimited(LatticeError):
    code = "rate_limited"

    def __init__(
        self, message: str, *, hint: str | None = None, retry_after_s: int | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.retry_after_s = retry_after_s


class Unavailable(LatticeError):
    code = "unavailable"


class DataUnavailable(LatticeError):
    code = "data_unavailable"


class JobEnded(LatticeError):
    code = "job_ended"


class ConfigurationError(LatticeError):
    """Carries all problems, so that one run of `--check-config` shows them all."""

    code = "configuration"

    def __init__(
        self, message: str, *, hint: str | None = None, problems: tuple[str, ...] = ()
    ) -> None:
        super().__init__(message, hint=hint)
        self.problems = problems


class InternalError(LatticeError):
    code = "internal"


class Status(NamedTuple):
    """How one kind of error appears in gRPC, in HTTP and as an exit code."""

    grpc: str
    http: int
    exit: int


STATUS: dict[type[LatticeError], Status] = {
    UsageError: Status("INVALID_ARGUMENT", 400, 2),
    LoginRequired: Status("UNAUTHENTICATED", 401, 4),
    PermissionRefused: Status("PERMISSION_DENIED", 403, 77),
    Conflict: Status("ALREADY_EXISTS", 409, 81),
    NotFound: Status("NOT_FOUND", 404, 102),
    RateLimited: Status("RESOURCE_EXHAUSTED", 429, 80),
    Unavailable: Status("UNAVAILABLE", 503, 75),
    DataUnavailable: Status("FAILED_PRECONDITION", 424, 76),
    JobEnded: Status("ABORTED", 409, 79),
    ConfigurationError: Status("INTERNAL", 500, 78),
    InternalError: Status("INTERNAL", 500, 1),
}

BY_CODE: dict[str, type[LatticeError]] = {kind.code: kind for kind in STATUS}


def status_of(error: LatticeError) -> Status:
    """The row for the class of this error or its nearest base class."""
    for kind in type(error).__mro__:
        if kind in STATUS:
            return STATUS[kind]
    return STATUS[InternalError]
