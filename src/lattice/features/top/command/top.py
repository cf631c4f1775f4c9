"""`lattice top`: a job's resource use, live in a terminal and as a plain table elsewhere."""

from __future__ import annotations

from lattice.base.command import Argument, Command, Option
from lattice.base.errors import UsageError
from lattice.base.moment import parse_duration
from lattice.base.shell import Shell
from lattice.domain.metric import Provenance
from lattice.features.top.model import TopAnswer, TopMode
from lattice.features.top.operations import TopRequest, metrics_call
from lattice.features.top.render.plain import commas, origin_text, plain

_USUAL_INTERVAL_S = 5.0
_LEAST_INTERVAL_S, _LONGEST_INTERVAL_S = 1, 3600
_NOTHING = 76


def read_interval(text: str) -> int:
    """Parse whole seconds between requests, 1 to 3600. Raises `UsageError`."""
    seconds = parse_duration(text)
    if not _LEAST_INTERVAL_S <= seconds <= _LONGEST_INTERVAL_S:
        raise UsageError(
            f"{text!r} is no time between looks", hint="Write 1 to 3600 seconds: 2, 30s, 1m."
        )
    return seconds


def read_attempt(text: str) -> int:
    """Parse the number of an attempt, 1 to 1000000. Raises `UsageError`."""
    if not (text.isascii() and text.isdigit()) or not 1 <= int(text) <= 1_000_000:
        raise UsageError(f"{text!r} is no attempt", hint="Attempts are 1, 2, …")
    return int(text)


def top(  # noqa: PLR0913 - one for each option
    shell: Shell,
    *,
    id: str | None,  # noqa: A002 - the argument's name
    per_node: bool,
    per_gpu: bool,
    wide: bool,
    duration: int | None,
    interval: int | None,
    attempt: int | None,
    once: bool,
    csv: bool,
    explain: bool,
) -> int:
    """Show one answer, or repeat the request."""
    request = TopRequest(
        id=shell.reference(id),
        mode=_mode(per_node=per_node, per_gpu=per_gpu, wide=wide or shell.output == "wide"),
        duration_s=duration,
        attempt=attempt or 0,
        explain=explain,
    )
    interval_s = float(interval or _USUAL_INTERVAL_S)
    plain_output = once or csv or explain or not shell.live
    if not plain_output and shell.output in {"table", "wide"}:
        # Loaded only on use: it is larger than the rest of the program.
        from lattice.features.top.command.screen import run_screen  # noqa: PLC0415

        return run_screen(shell, request, interval_s)
    again = interval is not None and not once
    answer = shell.call(metrics_call(request))
    _show(shell, answer, csv=csv, lines=again, first=True)
    while again and answer.ended is None:
        shell.sleep(interval_s)
        answer = shell.call(metrics_call(request))
        _show(shell, answer, csv=csv, lines=True, first=False)
    return _NOTHING if answer.origin.source is Provenance.UNAVAILABLE else 0


def _mode(*, per_node: bool, per_gpu: bool, wide: bool) -> TopMode:
    if per_node + per_gpu + wide > 1:
        raise UsageError("--per-node, --per-gpu and --wide exclude each other", hint="Take one.")
    if per_gpu:
        return TopMode.PER_GPU
    if wide:
        return TopMode.WIDE
    return TopMode.PER_NODE if per_node else TopMode.SUMMARY


def _show(shell: Shell, answer: TopAnswer, *, csv: bool, lines: bool, first: bool) -> None:
    if csv:
        shell.write(commas(answer, heading=first))
    elif shell.output == "json" and lines:
        shell.record(answer)
    elif shell.output in {"json", "yaml"}:
        shell.document(answer)
    else:
        shell.write(("" if first else "\n") + plain(answer, shell.style, shell.clock.now()))
    for query in answer.queries:
        shell.note(f"The metric store was asked at {answer.taken.isoformat()}:\n{query}")
    if answer.queries:
        shell.note(origin_text(answer))


TOP = Command(
    "top",
    summary="What a job uses: processors, memory, GPUs, network, storage",
    text="Shows what a job uses now; of a job that is over, what it used in all its time. In a "
    "terminal it is a live screen, in a pipe or with --once a plain table. Every figure was "
    "measured: where nobody measured there is a — with the reason below.\n\n"
    "CPU is in percent of one core. Rates cover the last four sampling intervals and 5 s. A figure "
    "with a * is the whole node's, because its kernel does not tell jobs apart there.\n\n"
    "Without an ID, inside a job, that job is meant.",
    run=top,
    params=(
        Argument("id", required=False, complete="allocations"),
        Option("-n", "--per-node", help="A line a node."),
        Option("-g", "--per-gpu", help="A line a GPU."),
        Option("-w", "--wide", help="A line a node, with every metric there is."),
        Option(
            "-d",
            "--duration",
            metavar="TIME",
            read=parse_duration,
            help="Mean and peak over the last 5m, 2h, …",
        ),
        Option(
            "-i",
            "--interval",
            metavar="TIME",
            read=read_interval,
            help="Time between looks; 5 s on the screen. In a pipe: go on until the job is over.",
        ),
        Option("--attempt", metavar="N", read=read_attempt, help="An earlier attempt."),
        Option("-1", "--once", help="One plain table, in a terminal too."),
        Option("--csv", help="Comma-separated values, a line a cell."),
        Option("--explain", help="Say what the metric store was asked."),
    ),
    examples=(
        ("lattice top 12345", "a live screen of one job"),
        ("lattice top 12345 --per-gpu --once", "a table with a line a GPU"),
        ("lattice top 12345 --duration 10m -o json", "means and peaks, for a script"),
        ("lattice top @last --interval 30 --csv", "a line a figure, until it is over"),
    ),
    permission="allocations:read; your own, what is shared with you, and an admin's reach",
    serverless=True,
)
