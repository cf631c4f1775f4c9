"""`lattice wait`: return when allocations have finished."""

from __future__ import annotations

import gc

from lattice.base.clock import pauses
from lattice.base.command import Argument, Command, Option
from lattice.base.errors import RateLimited, Unavailable
from lattice.base.moment import parse_duration
from lattice.base.shell import Shell
from lattice.base.text import inert
from lattice.domain.allocation import Allocation, State, parse_reference
from lattice.features.allocations import operations
from lattice.features.allocations.command.options import resolve
from lattice.features.allocations.command.watch import SILENCE_S
from lattice.features.allocations.model import AllocationCard
from lattice.features.allocations.render.states import change_line

FAILED, NOT_FINISHED, CANCELLED = 100, 101, 103


def wait(
    shell: Shell,
    *,
    id: tuple[str, ...],  # noqa: A002 - the word people read in the usage line
    timeout: int | None,
    exit_status: bool,
) -> int:
    """Return when all allocations have finished."""
    gc.enable()
    last: dict[str, Allocation] = {}
    for name in [resolve(shell, each) for each in id]:
        for each in _members(shell.call(operations.get_allocation(name)), name):
            _report_state(shell, last, each)
    silent_since: float | None = None
    for pause_s in pauses(timeout, shell.clock):
        if all(each.state.finished for each in last.values()):
            break
        shell.sleep(pause_s)
        silent_since = _poll(shell, last, silent_since)
    if shell.output in {"json", "yaml"}:
        shell.document(list(last.values()))
    return _verdict(shell, list(last.values()), exit_status=exit_status)


def _members(answer: AllocationCard, name: str) -> tuple[Allocation, ...]:
    """Return the named allocation; for a bare id, all tasks or components of that job."""
    reference = parse_reference(name)
    if reference.task_id is None and reference.offset is None:
        return (answer.allocation, *answer.siblings)
    return (answer.allocation,)


def _report_state(shell: Shell, last: dict[str, Allocation], each: Allocation) -> None:
    before = last.get(each.ref)
    if before is None or before.state is not each.state:
        old = before.state if before is not None else None
        line = change_line(each, old, shell.style, shell.clock.now())
        shell.note(line.rstrip("\n"))
    last[each.ref] = each


def _poll(shell: Shell, last: dict[str, Allocation], silent_since: float | None) -> float | None:
    try:
        for name, each in list(last.items()):
            if not each.state.finished:
                _report_state(shell, last, shell.call(operations.get_allocation(name)).allocation)
    except (RateLimited, Unavailable) as error:
        now = shell.clock.monotonic()
        if silent_since is None:
            shell.warn(f"{error.message}; still waiting.")
            return now
        if now - silent_since > SILENCE_S:
            raise
        return silent_since
    if silent_since is not None:
        shell.warn("The server answers again.")
    return None


def _verdict(shell: Shell, found: list[Allocation], *, exit_status: bool) -> int:
    open_ones = [each.id for each in found if not each.state.finished]
    if open_ones:
        shell.warn(f"Not finished in time: {', '.join(map(inert, open_ones))}.")
    if not exit_status:
        return 1 if open_ones else 0
    ends = {each.state for each in found if each.state.finished}
    if ends - {State.COMPLETED, State.CANCELLED, State.REVOKED}:
        return FAILED
    if ends & {State.CANCELLED, State.REVOKED}:
        return CANCELLED
    return NOT_FINISHED if open_ones else 0


WAIT = Command(
    "wait",
    summary="Wait until allocations have finished",
    text="Returns when every ID has finished and tells state changes meanwhile. A bare id of an "
    "array or of a heterogeneous job means all of it.\n\n"
    "With --exit-status the code is 0 for success, 100 if one failed, 103 if one was cancelled, "
    "101 if the time was over first. An id that is not there, or not yours, is 102.",
    run=wait,
    params=(
        Argument("id", repeat=True, complete="allocations"),
        Option(
            "-t",
            "--timeout",
            metavar="TIME",
            read=parse_duration,
            help="Give up after 90s, 5m, 2h.",
        ),
        Option("--exit-status", help="Tell by the exit code how it ended."),
    ),
    examples=(
        ("lattice wait 12345", "until it is over"),
        ("lattice wait 12345 --exit-status && ./publish", "go on only if it succeeded"),
        ("lattice wait @last --timeout 2h", "the newest, for two hours at most"),
    ),
    permission="any role, for your own",
)
