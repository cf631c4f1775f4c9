"""Makes the answer about training runs: which they are, what differs, and where they part. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from lattice.domain.statistics.mean_difference import (
    Difference,
    adjusted,
    paired_difference,
)
from lattice.domain.statistics.sureness import Sureness, sureness_of
from lattice.domain.training_run import TrainingRun
from lattice.features.compare.model import (
    PLOT_POINTS,
    ComparedTraining,
    EpochParting,
    LoggedComparison,
    LoggedDifference,
    LoggedLine,
    LoggedPoint,
    Setting,
    SettingValue,
    TrainingAxis,
    TrainingComparison,
    TrainingParting,
)
from lattice.features.compare.training.epochs import seconds_each
from lattice.features.compare.training.pairs import (
    TOGETHER,
    LoggedRun,
    Pair,
    Values,
    paired,
    parting_of,
    seconds_name,
)
from lattice.features.compare.verdict import change_of

MOST_DIFFERING = 50
NO_RUN = "no run in MLflow names it"
NOT_LOGGED = "it has none of that name"
NOT_BOTH = "not both logged it"
ONCE = "it was logged once, so nothing can be said of it"


@dataclass(frozen=True, slots=True)
class FoundTraining:
    """The run of one allocation, with its values; None and a reason if there is none."""

    logged: LoggedRun
    training: TrainingRun | None = None
    parameters: Mapping[str, str] = field(default_factory=dict)
    others: int = 0
    reason: str = ""


def training_comparison(
    found: Sequence[FoundTraining], notes: Sequence[str] = ()
) -> TrainingComparison:
    """Compare each run with the first."""
    pairs = [paired(found[0].logged, each.logged) for each in found[1:]]
    metrics = _metrics(found, pairs)
    parameters = _parameters(found)
    more = len(parameters) - MOST_DIFFERING
    return TrainingComparison(
        runs=tuple(_run(each, pairs[at - 1] if at else "") for at, each in enumerate(found)),
        parameters=parameters[:MOST_DIFFERING],
        metrics=metrics,
        partings=tuple(_partings(found, pairs, metrics)),
        notes=(*notes, f"{more} more parameters differ.") if more > 0 else tuple(notes),
    )


def _run(found: FoundTraining, pair: Pair | str) -> ComparedTraining:
    run, label = found.training, found.logged.label
    if run is None:
        return ComparedTraining(label=label, reason=found.reason or NO_RUN)
    values = found.logged.values
    return ComparedTraining(
        label=label,
        id=run.id,
        name=run.name,
        experiment=run.experiment,
        status=run.status,
        reason=found.reason or (pair if isinstance(pair, str) else ""),
        others=found.others,
        epochs=values.epochs if values is not None else None,
    )


def _metrics(
    found: Sequence[FoundTraining], pairs: Sequence[Pair | str]
) -> tuple[LoggedComparison, ...]:
    known = [each for each in pairs if isinstance(each, Pair)]
    tests = sum(each.tests for each in known)
    keys = [
        (name, at)
        for name in dict.fromkeys(name for each in known for name in each.logged)
        for at in range(len(pairs))
    ]
    raw = {(name, at): _difference(pairs[at], name) for name, at in keys}
    sound = {key: each for key, each in raw.items() if each is not None}
    among = dict(zip(sound, adjusted([each.chance for each in sound.values()]), strict=True))
    rows: dict[str, list[LoggedDifference]] = {}
    for name, at in keys:
        pair, label, one = pairs[at], found[at + 1].logged.label, sound.get((name, at))
        if isinstance(pair, str) or name not in pair.logged:
            reason = pair if isinstance(pair, str) else NOT_BOTH
            rows.setdefault(name, []).append(LoggedDifference(label=label, reason=reason))
            continue
        left, right = _at_both(*pair.logged[name])
        parting = parting_of(pair, name, tests)
        rows.setdefault(name, []).append(
            LoggedDifference(
                label=label,
                axis=pair.axis,
                baseline=fmean(left) if left else None,
                value=fmean(right) if right else None,
                change=change_of(one) if one is not None else None,
                reason="" if one is not None else f"both logged {len(left)} values: too few",
                sureness=_sureness(one, among.get((name, at)), parting),
                parting=parting,
            )
        )
    drawn = known[0].axis if known else None
    several = (_row(name, each, found, drawn) for name, each in rows.items())
    return (*several, *_logged_once(found))


def _difference(pair: Pair | str, name: str) -> Difference | None:
    if isinstance(pair, str) or name not in pair.logged:
        return None
    return paired_difference(*pair.logged[name])


def _sureness(
    one: Difference | None, among_all: float | None, parting: EpochParting | None
) -> Sureness:
    """Where two part, that is as sure as the search for it: one false one in 100 such pages."""
    if parting is not None:
        return Sureness.SURE
    if one is None or among_all is None:
        return Sureness.UNKNOWN
    return sureness_of(one.chance, among_all)


def _at_both(left: Values, right: Values) -> tuple[list[float], list[float]]:
    """The values where both have one."""
    both = [
        (one, other)
        for one, other in zip(left, right, strict=True)
        if one is not None and other is not None
    ]
    return [each for each, _ in both], [each for _, each in both]


def _logged_once(found: Sequence[FoundTraining]) -> Iterator[LoggedComparison]:
    """What has one value a run, such as a peak: they stand there, and nothing is judged."""
    once = [each.logged.values.once if each.logged.values is not None else {} for each in found]
    for name, value in once[0].items():
        if any(name in each for each in once[1:]):
            differences = tuple(
                LoggedDifference(
                    label=each.logged.label, baseline=value, value=own.get(name), reason=ONCE
                )
                for each, own in zip(found[1:], once[1:], strict=True)
            )
            yield LoggedComparison(name=name, unit="", differences=differences, lines=())


def _row(
    name: str,
    differences: Sequence[LoggedDifference],
    found: Sequence[FoundTraining],
    axis: TrainingAxis | None,
) -> LoggedComparison:
    is_time = name in set(map(seconds_name, TrainingAxis))
    return LoggedComparison(
        name=name,
        unit="s" if is_time else "",
        differences=tuple(differences),
        lines=tuple(_line(name, each.logged, axis) for each in found),
    )


def _line(name: str, run: LoggedRun, kind: TrainingAxis | None) -> LoggedLine:
    axis = run.values.axis(kind) if run.values is not None and kind is not None else None
    if axis is None or kind is None:
        return LoggedLine(label=run.label, axis=kind, points=())
    if name == seconds_name(kind):
        grid = axis.grid.at_most(PLOT_POINTS)
        values = [(at * grid.width, value) for at, value in seconds_each(grid).items()]
    elif name in axis.series:
        logged = axis.series[name].at_most(PLOT_POINTS)
        values = [(at * logged.width, each.mean) for at, each in logged.cells.items()]
    else:
        values = []
    points = tuple(LoggedPoint(at=at, value=value) for at, value in values)
    return LoggedLine(label=run.label, axis=kind, points=points)


def _partings(
    found: Sequence[FoundTraining],
    pairs: Sequence[Pair | str],
    metrics: Sequence[LoggedComparison],
) -> Iterator[TrainingParting]:
    """Where each run first parts from the baseline."""
    for number, pair in enumerate(pairs):
        parted = [
            (parting.at, each.name)
            for each in metrics
            if (parting := each.differences[number].parting) is not None
        ]
        if isinstance(pair, str) or not parted:
            continue
        first = min(at for at, _ in parted)
        cells = [each * pair.width for each in pair.cells]
        near = cells[min(cells.index(first) + TOGETHER, len(cells) - 1)]
        yield TrainingParting(
            label=found[number + 1].logged.label,
            axis=pair.axis,
            at=first,
            names=tuple(name for at, name in sorted(parted) if at <= near),
        )


def _parameters(found: Sequence[FoundTraining]) -> tuple[Setting, ...]:
    """Those that differ between runs that are known; a missing one differs from any value."""
    known = [each for each in found if each.training is not None]
    names = sorted({name for each in known for name in each.parameters})
    return tuple(
        Setting(name=name, values=tuple(_value(each, name) for each in found), differs=True)
        for name in names
        if len({each.parameters.get(name) for each in known}) > 1
    )


def _value(found: FoundTraining, name: str) -> SettingValue:
    if found.training is None:
        return SettingValue(value=None, reason=found.reason or NO_RUN)
    value = found.parameters.get(name)
    return SettingValue(value=value, reason="" if value is not None else NOT_LOGGED)
