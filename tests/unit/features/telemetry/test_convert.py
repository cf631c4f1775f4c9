"""What was measured crosses the wire whole; what was not never becomes a number."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.domain.alert import Alert, AlertRule, Phase, Progress, Severity
from lattice.domain.measured import JobSnapshot
from lattice.domain.metric import CATALOGUE, Absence, Labels, MetricKind, Provenance, Sample
from lattice.domain.node_snapshot import NodeAlert, NodeMeasured, NodeOver
from lattice.domain.nodejobs import JobIdentity
from lattice.domain.telemetry import Mode
from lattice.features.telemetry.convert.batches import (
    BadSamples,
    JobColumns,
    SeriesColumn,
    batch_message,
    batch_of,
    series_of,
)
from lattice.features.telemetry.convert.job_settings import (
    NodeJobSettings,
    StampedRun,
    settings_message,
    settings_of,
)
from lattice.features.telemetry.convert.snapshots import (
    BadSnapshot,
    SnapshotRequest,
    Want,
    alert_message,
    alert_of,
    news_of,
    node_snapshot_message,
    opening_bytes,
    opening_of,
    snapshot_message,
    snapshot_of,
)
from lattice.features.telemetry.convert.stamps import Stamps
from lattice.wire.v1 import telemetry_pb2 as pb

T0_MS = 1_794_702_411_000
T0 = T0_MS / 1000
SOURCES = st.sampled_from([each for each in Provenance if each is not Provenance.UNAVAILABLE])
OF_A_HOST = SOURCES.filter(lambda each: each is not Provenance.SLICE_GUEST)
"""A job is measured in a slice's guest or outside, never both."""
WORDS = st.text(
    st.characters(min_codepoint=32, max_codepoint=0x2FF).filter(str.isprintable),
    min_size=1,
    max_size=20,
)
METRICS = st.sampled_from(sorted(CATALOGUE))
MOMENTS = st.floats(1.1e9, 9e10)


def labels_of(metric: str) -> st.SearchStrategy[Labels]:
    names = sorted(CATALOGUE[metric].label_names)
    return st.tuples(*(WORDS.map(lambda value, name=name: (name, value)) for name in names))


def value_of(metric: str) -> st.SearchStrategy[float]:
    return st.floats(0, CATALOGUE[metric].most)


@st.composite
def samples(draw: Any, sources: st.SearchStrategy[Provenance] = SOURCES) -> Sample:
    metric = draw(METRICS)
    labels = draw(labels_of(metric))
    return Sample(metric, draw(value_of(metric)), draw(MOMENTS), draw(sources), labels)


@st.composite
def columns(draw: Any) -> JobColumns:
    times = sorted(draw(st.sets(st.integers(T0_MS, T0_MS + 10**6), max_size=5)))
    series = {}
    for metric in draw(st.lists(METRICS, max_size=4)):
        labels, source = draw(labels_of(metric)), draw(SOURCES)
        measured = st.one_of(st.just(math.nan), value_of(metric))
        values = draw(st.lists(measured, min_size=len(times), max_size=len(times)))
        late = draw(
            st.one_of(
                st.just([]),
                st.lists(st.integers(1, 9999), min_size=len(times), max_size=len(times)),
            )
        )
        series[metric, labels, source] = SeriesColumn(
            metric, labels, source, tuple(values), tuple(late)
        )
    return JobColumns(draw(st.integers(1, 2**31)), draw(MOMENTS), tuple(times), (*series.values(),))


def plain(jobs: Any) -> Any:
    """NaN is not equal to itself; its text is."""
    return repr(jobs)


@given(st.lists(columns(), max_size=3), st.integers(0, 2**40))
def test_a_batch_comes_out_as_it_went_in(jobs: list[JobColumns], lost: int) -> None:
    sent = batch_message(jobs, lost).SerializeToString()
    got = batch_of(pb.SampleBatch.FromString(sent))
    assert plain(got.jobs) == plain(tuple(jobs))
    assert (got.lost_total, got.refused, got.reason) == (lost, 0, "")


@pytest.mark.spec("SRC-2")
@given(columns())
def test_what_was_not_measured_makes_no_point(job: JobColumns) -> None:
    for each in job.series:
        points = list(each.points(job.times_ms))
        assert len(points) == sum(not math.isnan(value) for value in each.values)
        assert all(math.isfinite(value) for _, value in points)
        assert all(moment >= job.times_ms[0] / 1000 for moment, _ in points)


def test_a_late_sample_is_a_point_at_the_moment_it_was_read() -> None:
    column = SeriesColumn("threads", (), Provenance.HOST_LOCAL_PROBE, (1.0, 2.0), (0, 250))
    assert list(column.points((T0_MS, T0_MS + 1000))) == [(T0, 1.0), (T0 + 1.25, 2.0)]


def series(**other: Any) -> pb.SampleSeries:
    given = {"metric": "threads", "source": "host_local_probe", "values": [1.0], **other}
    return pb.SampleSeries(**given)


BAD = {
    "an unknown metric": series(metric="up"),
    "a metric with PromQL in it": series(metric='threads{a="b"} or up'),
    "no source": series(source=""),
    "unavailable": series(source="unavailable"),
    "labels of the server's": series(labels=[pb.SampleLabel(name="user", value="eve")]),
    "no GPU": series(metric="gpu_power_watts"),
    "a label with a line break": series(
        metric="gpu_power_watts", labels=[pb.SampleLabel(name="gpu_uuid", value="a\nb")]
    ),
    "infinite": series(values=[math.inf]),
    "negative": series(values=[-1.0]),
    "a vendor's blank": series(
        metric="gpu_power_watts",
        labels=[pb.SampleLabel(name="gpu_uuid", value="g")],
        values=[1.4e16],
    ),
    "too few": series(values=[]),
    "too many": series(values=[1.0, 2.0]),
    "lateness of nobody": series(late_ms=[1, 2]),
    "read an hour late": series(late_ms=[3_600_000]),
}


@pytest.mark.spec("SRC-2")
@pytest.mark.parametrize("name", BAD)
def test_a_series_that_cant_be_one_is_refused_and_the_others_are_not(name: str) -> None:
    with pytest.raises(BadSamples):
        series_of(BAD[name], 1)
    job = pb.JobSamples(
        job_id=7, started=T0, times_ms=[T0_MS], series=[BAD[name], series(metric="processes")]
    )
    got = batch_of(pb.SampleBatch(jobs=[job]))
    assert [each.metric for each in got.jobs[0].series] == ["processes"]
    assert got.refused == len(BAD[name].values)
    assert got.reason


@pytest.mark.parametrize(
    "job",
    [
        pb.JobSamples(job_id=0, started=T0, times_ms=[T0_MS], series=[series()]),
        pb.JobSamples(job_id=7, started=math.nan, times_ms=[T0_MS], series=[series()]),
        pb.JobSamples(job_id=7, started=T0, times_ms=[-1], series=[series()]),
        pb.JobSamples(
            job_id=7, started=T0, times_ms=[T0_MS, T0_MS], series=[series(values=[1.0, 2.0])]
        ),
        pb.JobSamples(job_id=7, started=T0, times_ms=[T0_MS], series=[series(), series()]),
    ],
)
def test_a_job_that_cant_be_one_is_counted_whole(job: pb.JobSamples) -> None:
    good = pb.JobSamples(job_id=8, started=T0, times_ms=[T0_MS], series=[series()])
    got = batch_of(pb.SampleBatch(jobs=[job, good]))
    assert [each.job_id for each in got.jobs] == [8]
    assert got.refused == sum(len(each.values) for each in job.series)


@pytest.mark.spec("SRC-2")
@given(st.binary(max_size=200))
def test_garbage_makes_no_number(garbage: bytes) -> None:
    try:
        told = news_of(garbage, "n1", 7)
    except BadSnapshot:
        return
    if isinstance(told, NodeMeasured):
        for sample in told.snapshot.now.samples:
            assert math.isfinite(sample.value)


ABSENCES = st.builds(Absence, METRICS, WORDS, st.one_of(st.just(""), WORDS))
IDENTITY = JobIdentity("", 7, 0, T0)


@given(
    st.sampled_from([OF_A_HOST, st.just(Provenance.SLICE_GUEST)]).flatmap(
        lambda sources: st.lists(
            st.one_of(samples(sources), ABSENCES),
            max_size=6,
            unique_by=lambda r: (r.metric, r.labels),
        )
    )
)
def test_a_snapshot_comes_out_as_it_went_in(readings: list[Any]) -> None:
    snapshot = JobSnapshot(IDENTITY, T0 + 30, 30.0, tuple(readings))
    assert snapshot_of(snapshot_message(T0, snapshot), 7) == snapshot


def reading(**other: Any) -> pb.SnapshotTold:
    given = {"metric": "threads", "source": "host_local_probe", "value": 1.0, "time": T0, **other}
    told = pb.ReadingTold(**given)
    return pb.SnapshotTold(began=T0, time=T0, resolution_s=1.0, readings=[told])


@pytest.mark.spec("SRC-3")
def test_a_snapshot_with_values_of_a_guest_and_of_its_host_is_refused() -> None:
    told = reading()
    told.readings.add(metric="processes", source="slice_guest", value=1.0, time=T0)
    with pytest.raises(BadSnapshot, match="guest and of its host"):
        snapshot_of(told, 7)


def lacking(*labels: tuple[str, str]) -> pb.SnapshotTold:
    told = pb.ReadingTold(metric="gpu_power_watts", reason="why")
    for name, value in labels:
        told.labels.add(name=name, value=value)
    return pb.SnapshotTold(began=T0, time=T0, resolution_s=1.0, readings=[told])


def test_one_series_of_a_metric_can_be_absent() -> None:
    (found,) = snapshot_of(lacking(("gpu_uuid", "GPU-a")), 7).readings
    assert found == Absence("gpu_power_watts", "why", labels=(("gpu_uuid", "GPU-a"),))


@pytest.mark.spec("SRC-2")
@pytest.mark.parametrize(
    "told",
    [
        reading(value=math.nan),
        reading(value=-1.0),
        reading(time=0.0),
        reading(source=""),
        reading(source="unavailable"),
        reading(labels=[pb.SampleLabel(name="user", value="eve")]),
        lacking(("user", "eve")),
        lacking(("gpu_uuid", "GPU-a"), ("gpu_uuid", "GPU-b")),
        lacking(("gpu_uuid", "\x1b[2J")),
        lacking(("gpu_uuid", "x" * 129)),
        pb.SnapshotTold(began=T0, time=math.inf, resolution_s=1.0),
        pb.SnapshotTold(began=T0, time=T0, resolution_s=math.nan),
    ],
)
def test_a_snapshot_that_cant_be_one_is_refused(told: pb.SnapshotTold) -> None:
    with pytest.raises(BadSnapshot):
        snapshot_of(told, 7)


def test_a_metric_of_a_newer_agent_is_left_out() -> None:
    assert snapshot_of(reading(metric="quantum_flux"), 7).readings == ()


def test_a_sight_has_the_counters_of_before_and_all_of_now() -> None:
    gauge, counter = Sample("threads", 3.0, T0), Sample("cpu_seconds_total", 5.0, T0)
    before = JobSnapshot(IDENTITY, T0, 30.0, (gauge, counter))
    now = JobSnapshot(IDENTITY, T0 + 30, 30.0, (gauge, counter))
    progress = Progress(output=T0, network=T0 + 1)
    sight = node_snapshot_message(T0, before, now, (ALERT,), progress, T0 - 500)
    told = news_of(pb.LookTell(sight=sight).SerializeToString(), "n1", 7)
    assert isinstance(told, NodeMeasured)
    assert told.snapshot.before == JobSnapshot(IDENTITY, T0, 30.0, (counter,))
    assert told.snapshot.now == now
    assert (told.snapshot.firing, told.snapshot.progress) == ((ALERT,), progress)
    assert told.snapshot.judged_since == T0 - 500
    sight.judged_since = float("nan")
    with pytest.raises(BadSnapshot, match="no moment"):
        news_of(pb.LookTell(sight=sight).SerializeToString(), "n1", 7)
    assert all(
        CATALOGUE[each.metric].kind is MetricKind.COUNTER for each in told.snapshot.before.samples
    )


ALERT = Alert(
    rule=AlertRule.GPU_IDLE,
    subject="GPU-1",
    phase=Phase.FIRING,
    severity=Severity.WARNING,
    value=3.0,
    bound=10.0,
    unit="%",
    since=T0 - 60,
    time=T0,
    text="GPU-1 is used 3 % of the time, less than 10 %, since 60 s.",
    remedy="Look at the input pipeline.",
)


def test_alerts_and_ends_come_out_as_they_went_in() -> None:
    assert alert_of(alert_message(ALERT)) == ALERT
    tells = {
        NodeAlert("n1", ALERT): pb.LookTell(alert=alert_message(ALERT)),
        NodeOver("n1"): pb.LookTell(over=True),
        None: pb.LookTell(),
    }
    for expected, message in tells.items():
        assert news_of(message.SerializeToString(), "n1", 7) == expected


@pytest.mark.parametrize(
    "wrong",
    [
        {"rule": "weather"},
        {"phase": "new"},
        {"severity": ""},
        {"value": math.nan},
        {"bound": math.inf},
        {"since": 0.0},
    ],
)
def test_an_alert_that_cant_be_one_is_refused(wrong: dict[str, Any]) -> None:
    message = alert_message(ALERT)
    for name, value in wrong.items():
        setattr(message, name, value)
    with pytest.raises(BadSnapshot):
        alert_of(message)


def test_an_opening_says_what_is_wanted_of_which_attempt() -> None:
    for want in Want:
        asked = SnapshotRequest(7, want, T0)
        assert opening_of(opening_bytes(asked)) == asked


@pytest.mark.parametrize(
    "opening",
    [
        b"\xff\xff",
        b"",
        pb.LookOpening(job_id=7, want="everything").SerializeToString(),
        pb.LookOpening(job_id=7, want="black_box").SerializeToString(),
        pb.LookOpening(want="look").SerializeToString(),
        pb.LookOpening(job_id=7, want="look", started=math.nan).SerializeToString(),
    ],
)
def test_a_question_that_is_none_is_refused(opening: bytes) -> None:
    with pytest.raises(BadSnapshot):
        opening_of(opening)


@given(
    st.dictionaries(
        st.integers(1, 2**31), st.tuples(st.sampled_from(Mode), st.one_of(st.none(), MOMENTS))
    ),
    st.sampled_from(Mode),
    st.dictionaries(st.integers(1, 2**31), st.lists(st.integers(0, 63), min_size=1).map(tuple)),
)
def test_what_servers_tell_comes_out_as_it_went_in(modes: Any, usual: Mode, gpus: Any) -> None:
    told = NodeJobSettings(modes, usual, gpus)
    assert settings_of(settings_message(told)) == told


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=50)


@given(
    st.dictionaries(
        st.integers(1, 2**31),
        st.builds(
            StampedRun,
            MOMENTS,
            st.builds(
                Stamps,
                alloc=TEXTS.filter(bool),
                attempt=st.integers(1, 2**31).map(str),
                project=TEXTS,
                tenant=TEXTS,
                user=TEXTS.filter(bool),
                vcluster=TEXTS,
            ),
        ),
    ),
    MOMENTS,
)
def test_whose_jobs_are_comes_out_as_it_went_in(runs: Any, as_of: float) -> None:
    told = settings_of(settings_message(NodeJobSettings(stamping=True, runs=runs, as_of=as_of)))
    assert told == NodeJobSettings(stamping=True, runs=runs)
    assert told.as_of == as_of
    assert settings_of(settings_message(NodeJobSettings(stamping=False, runs=runs))).runs == {}


@pytest.mark.parametrize(
    "wrong",
    [
        {"job_id": 0},
        {"started": math.nan},
        {"started": 0.0},
        {"alloc": ""},
        {"attempt": 0},
        {"user": ""},
        {"project": "x" * 300},
    ],
)
def test_half_a_name_is_none(wrong: dict[str, Any]) -> None:
    whole = {"job_id": 7, "started": T0, "alloc": "7", "attempt": 1, "user": "alice"}
    assert set(settings_of(_named(whole)).runs) == {7}
    assert settings_of(_named(whole | wrong)).runs == {}


def _named(stamps: dict[str, Any]) -> pb.JobsTold:
    return pb.JobsTold(stamping=True, stamps=[pb.JobStamps(**stamps)], as_of=T0)


def test_a_mode_of_a_newer_server_is_the_usual_one() -> None:
    modes = [pb.JobMode(job_id=7, mode="frenzy"), pb.JobMode(job_id=8, mode="debug")]
    told = settings_of(pb.JobsTold(usual="lazy", modes=modes))
    assert (told.usual, dict(told.modes)) == (Mode.PROD, {8: (Mode.DEBUG, None)})
