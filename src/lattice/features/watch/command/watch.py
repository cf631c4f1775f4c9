"""`lattice watch`: the live state of a job."""

from __future__ import annotations

import gc
from typing import Any

from lattice.base.command import Argument, Command, Option
from lattice.base.shell import Shell
from lattice.domain.allocation import State
from lattice.domain.measured import Shown
from lattice.features.watch import operations
from lattice.features.watch.command.notify import DesktopNotice, is_notable, read_notice
from lattice.features.watch.command.until import Until, parse_until, read_metric
from lattice.features.watch.command.views import view_of
from lattice.features.watch.model import USUAL, WatchEnd

FAILED, NOT_FINISHED, CANCELLED = 100, 101, 103
ENDED_FIRST = 79


def watch(shell: Shell, **values: Any) -> int:
    """Follow the job until it ends, or until the condition is fulfilled."""
    gc.enable()
    until: Until | None = values["until"]
    notice: DesktopNotice | None = values["notify"]
    alerts_only: bool = values["alerts_only"]
    metrics = tuple(dict.fromkeys(each for many in values["metrics"] for each in many))
    needed = until.metric if until is not None else None
    call = operations.watch(
        shell.reference(values["id"]),
        metrics=_asked_for(metrics, needed, alerts_only=alerts_only),
        alerts_only=alerts_only and needed is None,
    )
    view = view_of(shell, alerts_only=alerts_only)
    records = shell.stream(call)
    ended: WatchEnd | None = None
    is_met = False
    try:
        for record in records:
            view.show(record)
            if notice is not None and is_notable(record):
                notice.send(shell, record)
            is_met = until is not None and until.met(record)
            if isinstance(record, WatchEnd):
                ended = record
            if is_met or ended is not None:
                break
    finally:
        view.end()
        records.close()
        if notice is not None:
            notice.end()
    return _code(shell, until, ended, is_met=is_met, exit_status=values["exit_status"])


def _asked_for(
    metrics: tuple[Shown, ...], needed: Shown | None, *, alerts_only: bool
) -> tuple[str, ...]:
    """Return the metrics to show, and the one of the condition."""
    if needed is None:
        return tuple(each.value for each in metrics)
    shown = () if alerts_only else metrics or USUAL
    return tuple(dict.fromkeys((*(each.value for each in shown), needed.value)))


def _code(
    shell: Shell,
    until: Until | None,
    ended: WatchEnd | None,
    *,
    is_met: bool,
    exit_status: bool,
) -> int:
    if ended is None:
        if is_met and until is not None:
            shell.note(f"{until.text}: it is so now.")
            return 0
        return NOT_FINISHED if exit_status or until is not None else 0
    if until is not None and not is_met:
        shell.warn(f"The job ended before {until.text!r} came true.")
        return ENDED_FIRST
    return _verdict(ended) if exit_status else 0


def _verdict(ended: WatchEnd) -> int:
    if ended.state in {State.CANCELLED, State.REVOKED}:
        return CANCELLED
    return 0 if ended.state is State.COMPLETED else FAILED


def read_metrics(text: str) -> tuple[Shown, ...]:
    """Parse `gpu_utilization,memory_used`."""
    return tuple(read_metric(each.strip()) for each in text.split(","))


WATCH = Command(
    "watch",
    summary="How a job is, as it happens: figures, alerts, lost nodes",
    text="Shows what a job's nodes measure and what is wrong, an event a line, newest last, until "
    "the job ends. A job that has not started is waited for. An alert is told when it fires and "
    "when it has passed; a node that stops answering is told with since when, and what stood "
    "there is unknown then, not fine.\n\n"
    "CONDITION is running, ended, or METRIC<NUMBER, also with <=, > and >=, and with `for TIME` "
    'if it has to stay so, as in --until "gpu_utilization<10 for 5m"; it is judged by the figure '
    "of the whole job. If the job ends first the code is 79.\n\n"
    "With --exit-status the code is 0 for success, 100 if the job failed, 103 if it was "
    "cancelled, 101 if it has not ended.",
    run=watch,
    params=(
        Argument("id", required=False, complete="allocations"),
        Option(
            "--metric",
            "--metrics",
            metavar="NAMES",
            read=read_metrics,
            repeat=True,
            help="These figures, by name, with commas between.",
        ),
        Option("--alerts-only", help="No figures: alerts, lost nodes, the job's state."),
        Option(
            "--until",
            metavar="CONDITION",
            read=parse_until,
            help="Return when this is so.",
        ),
        Option("--exit-status", help="Tell by the exit code how the job ended."),
        Option(
            "--notify",
            metavar="HOW",
            read=read_notice,
            help="With each alert and at the end: bell, or a command of yours, which gets a line "
            "of JSON.",
        ),
        Option(
            "-o",
            "--output",
            choices=("table", "wide", "json", "ndjson"),
            help="wide: each node by itself; json and ndjson: an object an event.",
        ),
    ),
    examples=(
        ("lattice watch 12345", "everything, until it ends"),
        ("lattice watch 12345 --alerts-only --notify bell", "only what is wrong, and the bell"),
        ("lattice watch 12345 --metrics gpu_utilization,gpu_power_draw", "two figures"),
        ("lattice watch 12345 --until ended --exit-status", "its end as an exit code"),
        ("lattice watch @last --until running && lattice attach @last", "as soon as it runs"),
        ("lattice watch 12345 -o ndjson", "an object a line, for a script"),
    ),
    permission="any role, for your own and what is shared with you",
)
