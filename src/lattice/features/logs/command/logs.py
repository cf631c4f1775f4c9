"""`lattice logs`: what a job writes, live and later."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Any

from lattice.base.clock import pauses
from lattice.base.command import Argument, Command
from lattice.base.errors import (
    STATUS,
    DataUnavailable,
    LatticeError,
    LoginRequired,
    RateLimited,
    Unavailable,
)
from lattice.base.moment import moment
from lattice.base.shell import Followed, Shell
from lattice.base.text import inert
from lattice.domain.allocation import State
from lattice.domain.logs import GapCause
from lattice.features.logs import operations
from lattice.features.logs.blocks import LinesFrame
from lattice.features.logs.command.first_error import first_error
from lattice.features.logs.command.options import OPTIONS, LogOptions, is_chosen
from lattice.features.logs.command.views import (
    LogTerminalView,
    LogView,
    json_view,
    paged,
    plain_view,
)
from lattice.features.logs.model import LogBlock, LogGap, NoteKind
from lattice.features.logs.render.labels import Labels
from lattice.features.logs.render.lines import LineText

FAILED, NOT_FINISHED, CANCELLED = 100, 101, 103
TAMPERED = STATUS[DataUnavailable].exit
"""Sealed output is missing or was changed."""
_LONGEST_HINT = 2000
"""The cursor of a job with many nodes is too long to paste."""
_SPARE_BYTES = 8 * 1024 * 1024
"""A flood needs some texts of a quarter of a megabyte at a time."""
_CROWD = 2
_WORTH_GOING_ON = (LoginRequired, RateLimited, Unavailable)


def logs(shell: Shell, **values: Any) -> int:
    """Show or download the lines that the options choose."""
    gc.enable()
    asked = LogOptions.read(values)
    reference = shell.reference(asked.id)
    choice = asked.choice(shell, reference)
    if asked.download is not None:
        from lattice.features.logs.command.download import download  # noqa: PLC0415

        return download(shell, reference, asked.download, choice)
    as_text = shell.output in {"table", "wide"}
    if asked.first_error:
        return first_error(shell, reference, choice, _line_text(shell, reference, asked, choice))
    on_screen = shell.live and as_text and not asked.raw
    call = operations.stream_logs(
        reference,
        follow=asked.follow,
        cursor=asked.cursor or "",
        signs_of_life=on_screen and asked.follow,
        **choice,
    )
    node_count = _await_start(shell, reference) if asked.follow else 0
    if node_count:
        call = call._replace(answered=True)
    lines = _line_text(shell, reference, asked, choice, node_count) if as_text else None
    if not on_screen:
        from lattice.base.malloc import keep_freed_memory  # noqa: PLC0415

        keep_freed_memory(_SPARE_BYTES)
    # A screen needs characters; a file or a pipe takes bytes as they are.
    noted = _Noted(shell.stream(call if on_screen else operations.undecoded(call)))
    if lines is not None and on_screen and not asked.follow and not asked.no_pager:
        shown = lines
        _show(shell, asked, reference, noted, lambda: paged(shell, noted, shown, reference))
    else:
        view = _view(shell, lines, reference, asked)
        _show(shell, asked, reference, noted, lambda: _to(view, noted))
    if noted.last is None and not asked.follow:
        _report_empty_range(shell, choice)
    if noted.tampered:
        return TAMPERED
    return _verdict(shell, reference) if asked.exit_status else 0


def _report_empty_range(shell: Shell, choice: operations.LogChoice) -> None:
    """Report that a time range has no line; that is no error."""
    since, until, now = choice["since"], choice["until"], shell.clock.now()
    bounds = (
        f" since {moment(since, shell.style, now)}" if since else "",
        f" before {moment(until, shell.style, now)}" if until else "",
    )
    if any(bounds):
        which = " that was asked for" if choice["grep"] or choice["exclude"] else ""
        shell.note(f"No line{which}{' and'.join(filter(None, bounds))}.")


def _view(shell: Shell, lines: LineText | None, reference: str, asked: LogOptions) -> LogView:
    if lines is None:
        return json_view(shell)
    if shell.live and asked.follow and not asked.raw:
        return LogTerminalView(shell, lines, reference, sample=not asked.no_sample)
    return plain_view(shell, lines, reference)


def _await_start(shell: Shell, reference: str) -> int:
    """Wait until a pending job starts, and return its number of nodes; 0 if unknown."""
    announced = False
    for pause_s in pauses(None, shell.clock):
        try:
            job = shell.call(operations.job_end(reference)).allocation
        except (RateLimited, Unavailable):
            if not announced:
                return 0  # the stream may still work
        else:
            if not job.state.waiting:
                return job.node_count
            if not announced:
                shell.note(f"{inert(job.id)} has not started; it is shown as soon as it writes.")
                announced = True
        shell.sleep(pause_s)
    return 0


def _line_text(
    shell: Shell,
    reference: str,
    asked: LogOptions,
    choice: operations.LogChoice,
    node_count: int = 0,
) -> LineText:
    prefix = asked.prefix or ("none" if asked.raw or asked.template else "auto")
    known: list[tuple[str, int | None]] = []
    expected: list[tuple[str, int | None]] = []
    if prefix == "auto" and not len(choice["nodes"]) == len(choice["ranks"]) == 1:
        try:
            found = shell.call(
                operations.list_streams(reference, attempt=choice["attempt"])
            ).streams
        except LatticeError:
            found = ()  # the labels then begin with the second writer
        chosen = [each for each in found if is_chosen(each, choice)]
        expected = [(each.node, each.rank) for each in chosen]
        # Two streams get labels only if both have text; more than two always get labels.
        known = [(each.node, each.rank) for each in chosen if each.bytes or len(chosen) > _CROWD]
    return LineText(
        shell.style,
        Labels(prefix, shell.style, known, expected, len(choice["nodes"]) or node_count),
        now=shell.clock.now(),
        timestamps=asked.timestamps,
        raw=asked.raw,
        highlight=asked.highlight,
        template=asked.template,
    )


class _Noted:
    """The records, with the time of the last line that was read."""

    def __init__(self, records: Followed[Any]) -> None:
        self.records = records
        self.last: datetime | None = None
        self.tampered = False

    def __iter__(self) -> Iterator[Any]:
        for record in self.records:
            if isinstance(record, LogBlock | LinesFrame):
                self.last = record.time
            elif isinstance(record, LogGap):
                self.tampered |= record.cause is GapCause.TAMPERED
            else:
                self.tampered |= record.kind is NoteKind.TAMPERED
            yield record


def _to(view: LogView, records: Iterable[Any]) -> None:
    try:
        for record in records:
            view.show(record)
    finally:
        view.end()


def _show(
    shell: Shell, asked: LogOptions, reference: str, noted: _Noted, show: Callable[[], None]
) -> None:
    """Show the records; after an error that may pass, print how to resume."""
    try:
        show()
    except _WORTH_GOING_ON:
        again = f"resume: lattice logs {inert(reference)}{' -f' if asked.follow else ''}"
        cursor = inert(noted.records.cursor)
        if 0 < len(cursor) <= _LONGEST_HINT:
            shell.warn(f"{again} --from {cursor}")
        elif noted.last is not None:
            last = noted.last.isoformat(timespec="milliseconds").replace("+00:00", "Z")
            shell.warn(f"{again} --since {last}   (lines of that moment come again)")
        raise
    finally:
        noted.records.close()


def _verdict(shell: Shell, reference: str) -> int:
    """The exit code for how the job ended, as that of `lattice wait`."""
    state = shell.call(operations.job_end(reference)).allocation.state
    if not state.finished:
        return NOT_FINISHED
    if state in {State.CANCELLED, State.REVOKED}:
        return CANCELLED
    return 0 if state is State.COMPLETED else FAILED


LOGS = Command(
    "logs",
    summary="What a job writes, live and afterwards",
    text="Shows standard output and error of a job, all of it or the part that options choose, in "
    "the order of time. With several nodes or ranks each line says whose it is. What is missing is "
    "said where it is missing, and what happens to the stream stands between dashes.\n\n"
    "TIME is 14:02, 2026-11-15T14:02:00Z, 5m or 2h (ago), today, or start. RE is a regular "
    "expression. Escape sequences in logs are shown and not obeyed, but for colours, and progress "
    "bars are shown in their last state; --raw passes everything.\n\n"
    "With --exit-status the code is 0 for success, 100 if the job failed, 103 if it was cancelled, "
    "101 if it has not ended. Where stored output was changed, removed or added since it was "
    "sealed, it is 76.",
    run=logs,
    params=(
        Argument("id", required=False, complete="allocations"),
        *OPTIONS,
    ),
    examples=(
        ("lattice logs 12345", "all it wrote"),
        ("lattice logs -f --tail 20 12345", "the last lines, and what comes"),
        ("lattice logs 12345 --since 10m --grep 'loss=nan'", "what went wrong just now"),
        ("lattice logs 12345 --node n2 --stderr -t", "one node's errors, with times"),
        ("lattice logs 12345 --first-error", "which of all ranks fell first, and its last words"),
        ("lattice logs 12345 --previous", "of the attempt before it was requeued"),
        ("lattice logs -f 12345 -o json", "an object a line, for a script"),
        ("lattice logs 12345 --download logs", "files to keep"),
    ),
    permission="any role, for your own and what is shared with you",
    serverless=True,
)
