"""A look as CSV: one line per cell, missing ones with their reason. Pure."""

from __future__ import annotations

import csv
import io

from lattice.base.text import inert
from lattice.features.top.model import TopAnswer

_HEADING = (
    "time", "allocation", "attempt", "row", "node", "gpu_uuid", "metric", "value", "peak", "unit",
    "source", "age_s", "reason",
)  # fmt: skip


def commas(answer: TopAnswer, *, heading: bool = True) -> str:
    """Return every cell; an empty value was not measured."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if heading:
        writer.writerow(_HEADING)
    for row in answer.rows:
        for column, cell in zip(answer.columns, row.cells, strict=True):
            writer.writerow(
                inert(str(each)) if each is not None else ""
                for each in (
                    answer.taken.isoformat(),
                    answer.allocation,
                    answer.attempt,
                    row.kind.value,
                    row.node,
                    row.gpu_uuid,
                    cell.metric.value,
                    cell.value,
                    cell.peak,
                    column.unit,
                    cell.source.value,
                    row.age_s,
                    cell.reason,
                )
            )
    return text.getvalue()
