"""Training runs as a table. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from lattice.base.moment import duration, moment
from lattice.base.style import Style
from lattice.base.table import Cell, Column, table
from lattice.base.text import inert
from lattice.domain.checkpoint_lineage import SHORT, RunLineage
from lattice.domain.training_run import RUNNING, TrainingRun

_COLOURS = {"finished": "green", "failed": "red", "killed": "red", RUNNING: "cyan"}
_MOST_METRICS = 3
_FIRST = ("loss", "epoch", "accuracy", "acc")


def run_table(runs: Sequence[TrainingRun], style: Style, now: datetime) -> str:
    """A row for each run."""
    columns = [Column("RUN"), Column("EXPERIMENT", least=6), Column("STATUS")]
    columns += [Column("ALLOCATION"), Column("ATTEMPTS"), Column("STARTED")]
    columns += [Column("TIME", right=True), Column("NEWEST VALUES", least=8), Column("ID")]
    return table(columns, [_row(each, style, now) for each in runs], style)


def lineage_text(lineage: RunLineage, style: Style, now: datetime) -> str:
    """Runs that are connected by checkpoints, the oldest first, and what is odd about them."""
    columns = [Column("RUN", least=6), Column("ALLOCATION"), Column("STATUS"), Column("STARTED")]
    columns += [Column("LOADED", least=12), Column("WROTE", least=12), Column("ID")]
    rows = [_lineage_row(each, lineage, style, now) for each in lineage.runs]
    return table(columns, rows, style) + "".join(f"— {inert(each)}\n" for each in lineage.notes)


def _lineage_row(run: TrainingRun, lineage: RunLineage, style: Style, now: datetime) -> list[Cell]:
    known = {each.id: each for each in lineage.runs}
    loaded = []
    for checksum in run.loaded:
        wrote = [
            _writer(known[each.saved_by], run)
            for each in lineage.links
            if (each.loaded_by, each.checksum) == (run.id, checksum) and each.saved_by in known
        ]
        source = f" of {', '.join(wrote)}" if wrote else ""
        loaded.append(checksum[:SHORT] + source)
    status = inert(run.status)
    return [
        inert(run.name) or "—",
        inert(run.allocation.partition("@")[0]),
        (status, _COLOURS.get(status, "")),
        moment(run.started, style, now),
        ", ".join(loaded) or "—",
        ", ".join(each[:SHORT] for each in run.saved) or "—",
        inert(run.id),
    ]


def _writer(writer: TrainingRun, run: TrainingRun) -> str:
    """Its name, with the allocation if that is another one: many runs are called alike."""
    name = inert(writer.name) or inert(writer.id)
    if writer.allocation == run.allocation:
        return name
    return f"{name} ({inert(writer.allocation.partition('@')[0])})"


def _row(run: TrainingRun, style: Style, now: datetime) -> list[Cell]:
    status = inert(run.status)
    lasted = ((run.ended or now) - run.started).total_seconds() if _has_end(run) else None
    return [
        inert(run.name) or "—",
        inert(run.experiment),
        (status, _COLOURS.get(status, "")),
        inert(run.allocation.partition("@")[0]),
        ", ".join(map(str, run.attempts)) or "—",
        moment(run.started, style, now),
        "—" if lasted is None else duration(max(lasted, 0.0)),
        newest_values(run),
        inert(run.id),
    ]


def _has_end(run: TrainingRun) -> bool:
    return run.ended is not None or run.status == RUNNING


def newest_values(run: TrainingRun) -> str:
    """Its newest values, loss first."""
    ranked = sorted(run.metrics, key=lambda each: (_rank(each.name), each.name))
    return ", ".join(f"{inert(each.name)} {each.value:.4g}" for each in ranked[:_MOST_METRICS])


def _rank(name: str) -> int:
    plain = name.lower()
    return next((at for at, word in enumerate(_FIRST) if word in plain), len(_FIRST))
