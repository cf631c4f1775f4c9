"""Records of a watched job as messages of gRPC."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from lattice.domain.alert import Phase, Severity
from lattice.domain.allocation import ExitCode, State
from lattice.domain.measured import Shown
from lattice.domain.telemetry import Mode
from lattice.features.watch.model import (
    NodeFigures,
    NodeWord,
    WatchAlert,
    WatchEnd,
    WatchFigure,
    WatchMeasured,
    WatchMode,
    WatchNode,
    WatchNote,
    WatchNoteKind,
    WatchProgress,
    WatchRecord,
    WatchState,
)
from lattice.features.watch.wiring import record_message

NOW = datetime(2026, 11, 15, 14, 2, tzinfo=UTC)
FIGURE = WatchFigure(metric=Shown.GPU_UTILIZATION, value=0.0, unit="percent")
RECORDS: tuple[WatchRecord, ...] = (
    WatchMeasured(
        time=NOW, resolution_s=30, summary=(FIGURE,), measured=1, node_count=2,
        nodes=(NodeFigures(node="n1", time=NOW, figures=(FIGURE,)),),
    ),
    WatchAlert(
        node="n1", rule="gpu_idle", phase=Phase.FIRING, severity=Severity.WARNING, since=NOW,
        time=NOW, words="It is idle.",
    ),
    WatchNode(node="n1", word=NodeWord.STALE, time=NOW),
    WatchMode(mode=next(iter(Mode)), interval_s=30, time=NOW),
    WatchProgress(time=NOW, moving=True),
    WatchState(allocation="7", state=State.RUNNING, attempt=1, time=NOW),
    WatchEnd(allocation="7", state=State.FAILED, attempt=1, exit_code=ExitCode(1), time=NOW),
    WatchNote(kind=WatchNoteKind.ALIVE, time=NOW),
)  # fmt: skip


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.type)
def test_the_type_of_a_record_names_its_field(record: WatchRecord) -> None:
    message = record_message(record, "c")
    assert (message.WhichOneof("record"), message.cursor) == (record.type, "c")
    assert getattr(message, record.type).time.ToDatetime(tzinfo=UTC) == NOW


def test_a_measured_zero_is_a_value() -> None:
    measured = record_message(RECORDS[0]).measured
    assert measured.summary[0].HasField("value")
    assert measured.nodes[0].figures[0].metric == "gpu_utilization"


def test_an_exit_code_is_written_as_slurm_does() -> None:
    ended = WatchEnd(allocation="7", state=State.COMPLETED, attempt=1, time=NOW)
    assert not record_message(ended).ended.exit_code
    assert record_message(RECORDS[6]).ended.exit_code == "1:0"
