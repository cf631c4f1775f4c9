"""A request as options of `sbatch`. Pure.

The server parses only as much of `sbatch` as it needs to avoid contradictions. `sbatch` checks
everything else.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from lattice.base.errors import UsageError
from lattice.base.moment import parse_duration
from lattice.domain.allocation import BadReference, parse_reference
from lattice.domain.labels import Marks, check_labels, write_comment
from lattice.domain.sbatch import (
    COMMENT,
    JOB_NAME,
    PARTITION,
    QOS,
    RESERVATION,
    TAKES_VALUE,
    is_option,
    option_value,
    script_options,
    short_options,
)
from lattice.domain.vcluster import VclusterKind, Vclusters
from lattice.features.submit.model import SubmitRequest
from lattice.features.submit.service.uenv import UenvPlugin, uenv_options

_SLURM_TIME = re.compile(r"[0-9:-]+|UNLIMITED|INFINITE", re.IGNORECASE)
_CONDITIONS = {"success": "afterok", "failure": "afternotok", "any": "afterany"}
_UNCLEAN = re.compile(r"[^A-Za-z0-9._+-]+")
_LONGEST_NAME = 64

_REFUSED = (
    (("-W", "--wait", 6), "`lattice wait ID` waits for it."),
    (("-M", "--clusters", 6), "A server of Lattice speaks for one cluster."),
    (("", "--wrap", 4), "Give the command behind `--`."),
)


def sbatch_options(
    request: SubmitRequest,
    views: Vclusters,
    key: str,
    reservations: Sequence[str] = (),
    plugin: UenvPlugin = UenvPlugin(),  # noqa: B008 - frozen
) -> tuple[str, ...]:
    """The options for `sbatch`. `key` is the digest of an idempotency key. Raises `UsageError`.

    `reservations`: one of these the job has to run in.
    """
    passed = _passed(request.options)
    own = script_options(request.script)
    for arguments in (passed, own):
        _refuse(arguments)
    if reservations:
        _refuse_other_nodes(passed)
    elif not request.vcluster:
        _refuse_sensitive(passed, own, views)
    options = [
        *_plain(request),
        *uenv_options(request, plugin),
        *_view(request.vcluster, views),
        *([f"--reservation={','.join(reservations)}"] if reservations else ()),
        *_dependency(request.depends_on),
        *_comment(request, key, (*passed, *own)),
        *passed,
    ]
    if not request.name and not any(is_option(word, JOB_NAME) for word in (*passed, *own)):
        name = job_name(request.file)
        options += [f"--job-name={name}"] if name else []
    return tuple(options)


def _plain(request: SubmitRequest) -> Iterable[str]:
    named = (
        ("nodes", request.nodes),
        ("time", slurm_time(request.walltime) if request.walltime else ""),
        ("gpus", request.gpus),
        ("account", request.project),
        ("job-name", request.name),
        ("array", request.array),
        ("output", request.output),
    )
    return (f"--{name}={value}" for name, value in named if value)


def slurm_time(text: str) -> str:
    """Slurm's own form unchanged (a bare number is minutes); `2h30m` as minutes, rounded up."""
    if _SLURM_TIME.fullmatch(text):
        return text
    return str(-(-parse_duration(text) // 60))


def _view(name: str, views: Vclusters) -> Iterable[str]:
    if not name:
        return ()
    view = next((each for each in views.views if each.name == name), None)
    if view is None:
        known = ", ".join(each.name for each in views.views) or "none is configured"
        raise UsageError(f"There is no vCluster {name[:60]!r}.", hint=f"There are: {known}.")
    return (f"--partition={view.partition}", *((f"--qos={view.qos}",) if view.qos else ()))


def _dependency(wanted: Sequence[str]) -> Iterable[str]:
    parts = []
    for text in wanted:
        name, _, condition = text.partition(":")
        try:
            reference = parse_reference(name)
        except BadReference as problem:
            raise UsageError(f"{problem}.", hint=_DEPENDS_HINT) from None
        kind = _CONDITIONS.get(condition or "success")
        if kind is None or reference.submitted is not None:
            raise UsageError(f"{text[:60]!r} is no dependency.", hint=_DEPENDS_HINT)
        parts.append(f"{kind}:{reference}")
    return (f"--dependency={','.join(parts)}",) if parts else ()


_DEPENDS_HINT = "Write ID:success, ID:failure or ID:any."


def _comment(request: SubmitRequest, key: str, arguments: Sequence[str]) -> Iterable[str]:
    check_labels(request.labels)
    comment = write_comment(Marks(request.labels, key))
    if comment and any(is_option(word, COMMENT) for word in arguments):
        raise UsageError(
            "A comment of your own can't go with labels or an idempotency key.",
            hint="Both are kept in Slurm's job comment: leave one of them out.",
        )
    return (f"--comment={comment}",) if comment else ()


def _passed(arguments: tuple[str, ...]) -> tuple[str, ...]:
    if arguments and not arguments[0].startswith("-"):
        raise UsageError(
            f"{arguments[0][:60]!r} is no option of sbatch.", hint="Options have a dash."
        )
    if "--" in arguments or "" in arguments:
        raise UsageError("An option passed on to sbatch is empty.")
    return arguments


def _refuse(arguments: Sequence[str]) -> None:
    for word in arguments:
        letters = short_options(word)
        if letters and letters[-1] not in TAKES_VALUE:
            raise UsageError(
                f"{word[:60]!r} can't be passed on to sbatch: {letters[-1]!r} is no option of it.",
                hint="Give each option by its long name, and its value behind `=`.",
            )
        for option, hint in _REFUSED:
            if is_option(word, option):
                raise UsageError(f"{word[:60]!r} can't be passed on to sbatch.", hint=hint)


def _refuse_other_nodes(passed: Sequence[str]) -> None:
    """What stands behind the own options counts, so it must not lead elsewhere."""
    for word in passed:
        if any(is_option(word, each) for each in (PARTITION, QOS, RESERVATION)):
            raise UsageError(
                f"{word[:60]!r} can't go with a vCluster for sensitive work.",
                hint="Its partition and the nodes that you claimed are chosen for you.",
            )


def _refuse_sensitive(passed: Sequence[str], own: Sequence[str], views: Vclusters) -> None:
    """A partition for sensitive work takes its vCluster, which looks for the claim."""
    partitions = option_value(passed, PARTITION) or option_value(own, PARTITION)
    qos = option_value(passed, QOS) or option_value(own, QOS)
    for each in partitions.split(","):
        view = views.of(each, qos)
        if view is not None and view.kind is VclusterKind.SENSITIVE:
            raise UsageError(
                f"The partition {each[:60]!r} is for sensitive work.",
                hint=f"lattice submit --vcluster {view.name}, on nodes that you claimed.",
            )


def job_name(file: str) -> str:
    """The name of a job after its script: the last part of the path, without odd characters."""
    last = file.rstrip("/").rpartition("/")[2]
    return _UNCLEAN.sub("_", last).strip("-_")[:_LONGEST_NAME]
