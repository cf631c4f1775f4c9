"""`lattice compare`: what differs between runs, since when, and how certain that is.

`--fail-on` is a bound on a difference, for scripts such as CI gates:

    METRIC < or > NUMBER[%|K|M|G|T]        gpu_utilization<-5%   memory_used>2G

The number is a difference from the baseline: in percent of it, or in the metric's own unit.

A bound is broken when the estimate is beyond it and the interval excludes zero. That is checked for
the steady means and for the time since the runs diverge. Noise alone does that in one of forty
comparisons. If only the interval reaches beyond the bound, the result is unsure. That passes with a
warning, unless `--fail-unsure` is set. A metric that was not measured fails.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from lattice.base.command import FORMATS, Argument, Command, Option
from lattice.base.errors import UsageError
from lattice.base.moment import duration
from lattice.base.shell import Shell
from lattice.domain.measured import SHOWN, Shown
from lattice.domain.metric import Provenance
from lattice.domain.training_run import RunStoreSilent
from lattice.features.compare import operations
from lattice.features.compare.model import (
    FEWEST_RUNS,
    MOST_RUNS,
    USUAL,
    Change,
    Comparison,
    RunDifference,
    metrics_named,
)

BROKEN = 113
VARIABLE = "MLFLOW_TRACKING_URI"
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
    mlflow: str | None,
) -> int:
    """Compare runs, show the result and check the bounds."""
    if not FEWEST_RUNS <= len(id) <= MOST_RUNS:
        raise UsageError(
            f"It takes {FEWEST_RUNS} to {MOST_RUNS} allocations to compare.",
            hint="The first is the baseline: `lattice compare 41 42`.",
        )
    references = [shell.reference(each) for each in id]
    answer = shell.call(operations.compare_metrics(*references, metrics=_wanted(metrics, fail_on)))
    answer = _with_file(shell, answer, mlflow)
    _show(shell, answer, every_plot=bool(metrics))
    if fail_on:
        return _exit_code(shell, answer, fail_on, fail_unsure=fail_unsure)
    measured = any(each.origin.source is not Provenance.UNAVAILABLE for each in answer.runs)
    return 0 if measured else _NOTHING


def _with_file(shell: Shell, answer: Comparison, mlflow: str | None) -> Comparison:
    """Use the named file of MLflow, or that of the environment if the server knows no run."""
    known = answer.trainings
    if mlflow is None and known is not None and any(each.id for each in known.runs):
        return answer
    if mlflow is None and VARIABLE not in shell.environment:
        return answer
    from lattice.features.compare.training.own_file import compared_from_file  # noqa: PLC0415
    from lattice.observe.mlflow_file import mlflow_file  # noqa: PLC0415

    file = Path(mlflow) if mlflow is not None else mlflow_file(shell.environment)
    if file is None:
        return answer
    try:
        found = compared_from_file(answer, file, shell.clock.now())
    except RunStoreSilent as silence:
        shell.warn(str(silence))
        return answer
    if found is None and mlflow is not None:
        shell.warn(f"{file} has no run of these allocations.")
    return answer if found is None else replace(answer, trainings=found)


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


def _exit_code(
    shell: Shell, answer: Comparison, bounds: tuple[Bound, ...], *, fail_unsure: bool
) -> int:
    failing = {FailOnVerdict.BROKEN, FailOnVerdict.UNKNOWN} | (
        {FailOnVerdict.UNSURE} if fail_unsure else set()
    )
    judged = [each for bound in bounds for each in judge(bound, answer)]
    for each in judged:
        (shell.note if each.verdict is FailOnVerdict.HOLDS else shell.warn)(each.message)
    return BROKEN if any(each.verdict in failing for each in judged) else 0


_FORM = re.compile(
    r"\s*([a-z0-9_]+)\s*([<>])\s*([+-]?[0-9]{1,15}(?:\.[0-9]{1,9})?)\s*([%KMGT]?)\s*"
)
_SIZES = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_HINT = "Write a metric, < or >, and a difference from the baseline: 'gpu_utilization<-5%'."


class FailOnVerdict(StrEnum):
    """The result of one bound and one run."""

    HOLDS = "holds"
    BROKEN = "broken"
    UNSURE = "unsure"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Bound:
    text: str
    metric: Shown
    below: bool
    value: float
    in_percent: bool


@dataclass(frozen=True, slots=True)
class Judged:
    """The result of one bound and one run, with a message."""

    verdict: FailOnVerdict
    message: str


def read_bound(text: str) -> Bound:
    """Parse a bound. Raises `UsageError` with a hint."""
    found = _FORM.fullmatch(text)
    if found is None:
        raise UsageError(f"{text!r} is no bound: {_problem(text)}", hint=_HINT)
    word, sign, number, unit = found.groups()
    try:
        metric = Shown(word)
    except ValueError:
        there = ", ".join(each.value for each in Shown)
        raise UsageError(f"{word!r} is no metric", hint=f"There are {there}.") from None
    if unit in _SIZES and not SHOWN[metric].unit.startswith("bytes"):
        raise UsageError(
            f"{text!r}: {word} is not in bytes",
            hint=f"Leave the {unit} out, or write a % for a share of the baseline.",
        )
    value = float(number) * _SIZES.get(unit, 1)
    if (sign == "<" and value > 0) or (sign == ">" and value < 0):
        other = "-" if sign == "<" else ""
        raise UsageError(
            f"{text!r} would fail for two equal runs",
            hint=f"The number is a difference: write '{word}{sign}{other}{number.lstrip('+-')}"
            f"{unit}'.",
        )
    return Bound(text.strip(), metric, sign == "<", value, unit == "%")


def _problem(text: str) -> str:
    if "<" not in text and ">" not in text:
        return "it has neither < nor >"
    if any(each in text for each in ("<=", ">=", "=<", "=>", "==")):
        return "only < and > can stand there"
    if text.count("<") + text.count(">") > 1:
        return "it has more than one < or >"
    return "it needs a metric before and a number behind"


def judge(bound: Bound, comparison: Comparison) -> tuple[Judged, ...]:
    """Check every run against a bound."""
    row = next((each for each in comparison.metrics if each.metric is bound.metric), None)
    if row is None:
        unmeasured = f"{bound.text}: unknown, nothing of it was measured"
        return tuple(Judged(FailOnVerdict.UNKNOWN, unmeasured) for _ in comparison.runs[1:])
    return tuple(_judge_run(bound, each) for each in row.differences)


def _judge_run(bound: Bound, one: RunDifference) -> Judged:
    if one.change is None:
        return Judged(FailOnVerdict.UNKNOWN, f"{bound.text}: unknown for {one.label}: {one.reason}")
    whole = _weighed(bound, one.label, one.change)
    parting = one.parting
    if parting is None or parting.since is None or whole.verdict is FailOnVerdict.BROKEN:
        return whole
    since = _weighed(bound, one.label, parting.since)
    if since.verdict is not FailOnVerdict.BROKEN:
        return whole
    return replace(since, message=f"{since.message} since {duration(parting.at_s)}")


def _weighed(bound: Bound, label: str, change: Change) -> Judged:
    figures = _figures(bound, change)
    if figures is None:
        return Judged(
            FailOnVerdict.UNKNOWN,
            f"{bound.text}: unknown for {label}: the baseline is not told apart from zero, so "
            "there are no percents of it",
        )
    value, low, high = figures
    unit = " %" if bound.in_percent else ""
    shown = f"{label} is at {value:+.4g}{unit} ({low:+.4g} to {high:+.4g}{unit})"
    beyond = value < bound.value if bound.below else value > bound.value
    leaves_zero = high < 0 if bound.below else low > 0
    reaches = low < bound.value if bound.below else high > bound.value
    if beyond and leaves_zero:
        return Judged(FailOnVerdict.BROKEN, f"{bound.text}: broken, {shown}")
    if reaches:
        return Judged(FailOnVerdict.UNSURE, f"{bound.text}: unsure, {shown}")
    return Judged(FailOnVerdict.HOLDS, f"{bound.text}: holds, {shown}")


def _figures(bound: Bound, change: Change) -> tuple[float, float, float] | None:
    if not bound.in_percent:
        return change.absolute, change.absolute_low, change.absolute_high
    if change.percent is None or change.percent_low is None or change.percent_high is None:
        return None
    return change.percent, change.percent_low, change.percent_high


COMPARE = Command(
    "compare",
    summary="What differs between runs, and how sure that is",
    text="Lays runs upon each other from the start of each and says what differs, since when, and "
    "how sure that is. The first is the baseline. Warm-up is left out; a difference has a 95 % "
    "interval in which neighbouring samples count for what they are worth, and the smallest "
    "difference that would have been found. Running and finished, long and short, on other nodes "
    "and measured at other resolutions: each is compared for what is known of it. A mean with a ~ "
    "is of a run without a steady state.\n\n"
    "Where the allocations have training runs in MLflow, these are compared, too: parameters that "
    "differ, what was logged over epochs or steps, the epoch where they parted, and what was "
    "measured then.\n\n"
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
        Option(
            "--mlflow",
            metavar="FILE",
            help="MLflow's SQLite file; else the server's runs, or those in MLFLOW_TRACKING_URI.",
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
