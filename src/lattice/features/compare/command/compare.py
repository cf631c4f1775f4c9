"""`lattice compare`: what differs between runs, since when, and how certain that is."""

from __future__ import annotations

from lattice.base.command import FORMATS, Argument, Command, Option
from lattice.base.errors import UsageError
from lattice.base.shell import Shell
from lattice.domain.metric import Provenance
from lattice.features.compare import operations
from lattice.features.compare.command.failon import Bound, FailOnVerdict, judge, read_bound
from lattice.features.compare.model import (
    FEWEST_RUNS,
    MOST_RUNS,
    USUAL,
    Comparison,
    metrics_named,
)

BROKEN = 113
_NOTHING = 76


def read_metrics(text: str) -> str:
    """Check a comma-separated list of metrics and return it unchanged. Raises `UsageError`."""
    metrics_named((text,))
    return text


def compare(
    shell: Shell,
    *,
    id: tuple[str, ...],  # noqa: A002 - the word people read in the usage line
    metrics: tuple[str, ...],
    fail_on: tuple[Bound, ...],
    fail_unsure: bool,
) -> int:
    """Compare runs, show the result and check the bounds."""
    if not FEWEST_RUNS <= len(id) <= MOST_RUNS:
        raise UsageError(
            f"It takes {FEWEST_RUNS} to {MOST_RUNS} allocations to compare.",
            hint="The first is the baseline: `lattice compare 41 42`.",
        )
    references = [shell.reference(each) for each in id]
    answer = shell.call(operations.compare_metrics(*references, metrics=_wanted(metrics, fail_on)))
    _show(shell, answer, every_plot=bool(metrics))
    if fail_on:
        return _judged(shell, answer, fail_on, fail_unsure=fail_unsure)
    measured = any(each.origin.source is not Provenance.UNAVAILABLE for each in answer.runs)
    return 0 if measured else _NOTHING


def _wanted(metrics: tuple[str, ...], fail_on: tuple[Bound, ...]) -> tuple[str, ...]:
    """Return the requested metrics and those with a bound; empty for the default ones."""
    bounded = [each.metric for each in fail_on]
    if not metrics and all(each in USUAL for each in bounded):
        return ()
    asked = metrics_named(metrics) if metrics else USUAL
    return tuple(dict.fromkeys(each.value for each in (*asked, *bounded)))


def _show(shell: Shell, answer: Comparison, *, every_plot: bool) -> None:
    if shell.output in {"json", "yaml"}:
        shell.document(answer)
    elif shell.output == "csv":
        from lattice.features.compare.render.commas import commas  # noqa: PLC0415

        shell.write(commas(answer))
    elif shell.output == "html":
        from lattice.features.compare.render.page import page  # noqa: PLC0415

        shell.write(page(answer))
    else:
        from lattice.features.compare.render.plain import comparison_text  # noqa: PLC0415

        every = every_plot or shell.output == "wide"
        shell.write(comparison_text(answer, shell.style, shell.clock.now(), every_plot=every))


def _judged(
    shell: Shell, answer: Comparison, bounds: tuple[Bound, ...], *, fail_unsure: bool
) -> int:
    failing = {FailOnVerdict.BROKEN, FailOnVerdict.UNKNOWN} | (
        {FailOnVerdict.UNSURE} if fail_unsure else set()
    )
    judged = [each for bound in bounds for each in judge(bound, answer)]
    for each in judged:
        (shell.note if each.verdict is FailOnVerdict.HOLDS else shell.warn)(each.words)
    return BROKEN if any(each.verdict in failing for each in judged) else 0


COMPARE = Command(
    "compare",
    summary="What differs between runs, and how sure that is",
    text="Lays runs upon each other from the start of each and says what differs, since when, and "
    "how sure that is. The first is the baseline. Warm-up is left out; a difference has a 95 % "
    "interval in which neighbouring samples count for what they are worth, and the smallest "
    "difference that would have been found. Running and finished, long and short, on other nodes "
    "and measured at other resolutions: each is compared for what is known of it. A mean with a ~ "
    "is of a run without a steady state.\n\n"
    "--fail-on is for scripts: with a bound that is broken, or that nothing was measured for, the "
    "exit code is 113.",
    run=compare,
    params=(
        Argument("id", repeat=True, complete="allocations"),
        Option(
            "-m",
            "--metric",
            "--metrics",
            metavar="NAMES",
            read=read_metrics,
            repeat=True,
            help="These, with commas between, and a plot of each; else the usual ones.",
        ),
        Option(
            "--fail-on",
            metavar="BOUND",
            read=read_bound,
            repeat=True,
            help="Exit with 113 beyond it: 'gpu_utilization<-5%'; may be given again.",
        ),
        Option("--fail-unsure", help="Fail too where it can't be told whether a bound is broken."),
        Option(
            "-o",
            "--output",
            choices=(*FORMATS, "csv", "html"),
            help="How to show it; wide: a plot of every metric, html: one file, no scripts.",
        ),
    ),
    examples=(
        ("lattice compare 12345 12346", "the second against the first"),
        ("lattice compare train-base @last --metric gpu_utilization", "by name, one metric"),
        ("lattice compare 1 2 3 -o html > runs.html", "two runs against a baseline, as a page"),
        ("lattice compare 41 42 --fail-on 'gpu_utilization<-5%'", "a gate for CI"),
    ),
    permission="allocations:read; your own, what is shared with you, and an admin's reach",
)
