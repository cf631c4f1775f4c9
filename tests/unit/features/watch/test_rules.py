"""Each rule by its story: when it fires, what it says, when it passes, when nobody knows."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from lattice.domain.alert import Alert, AlertRule, Phase, Progress, Severity
from lattice.domain.measured import JobSnapshot
from lattice.domain.metric import Absence, MetricReading, labelled
from lattice.features.watch.node.judge import AlertJudge, judge_factory
from lattice.observe.thresholds import Thresholds
from tests.fakes.node_looks import BEGUN, CARD, OTHER_CARD, absent, card, sample, snapshot


def judged(
    judge: AlertJudge,
    looks: Iterable[tuple[float, Iterable[MetricReading]]],
    output: float | None = None,
) -> list[Alert]:
    """All changes, in their order; looks are seconds and readings."""
    return [
        change for at, readings in looks for change in judge.see(snapshot(at, *readings), output)
    ]


def phases(changes: Iterable[Alert]) -> list[tuple[str, str]]:
    return [(each.rule.value, each.phase.value) for each in changes]


def idle(*looks: tuple[float, float | None]) -> list[tuple[float, Iterable[MetricReading]]]:
    return [(at, card(at, used=used)) for at, used in looks]


class TestAGpuThatIdles:
    @pytest.mark.spec("WATCH-2")
    def test_fires_after_more_than_a_minute_below_the_bound(self) -> None:
        judge = AlertJudge()
        assert judged(judge, idle((0, 3), (30, 4), (60, 2))) == []
        (fired,) = judged(judge, idle((90, 3)))
        assert (fired.rule, fired.subject, fired.phase) == (AlertRule.GPU_IDLE, CARD, Phase.FIRING)
        assert (fired.value, fired.bound, fired.unit) == (3, 10, "%")
        assert (fired.since, fired.time) == (BEGUN, BEGUN + 90)
        assert "3 %" in fired.text
        assert "10 %" in fired.text
        assert fired.remedy
        assert judge.firing == (fired,)

    @pytest.mark.spec("WATCH-2")
    def test_one_busy_look_begins_the_minute_anew(self) -> None:
        assert judged(AlertJudge(), idle((0, 3), (30, 4), (60, 50), (90, 3), (120, 3))) == []

    @pytest.mark.spec("WATCH-2")
    def test_is_told_once_and_clears_a_little_above_the_bound(self) -> None:
        judge = AlertJudge()
        changes = judged(judge, idle((0, 0), (30, 0), (61, 0), (90, 0), (120, 11), (150, 0)))
        assert phases(changes) == [("gpu_idle", "firing")]
        (cleared,) = judged(judge, idle((180, 12)))
        assert (cleared.phase, cleared.since, cleared.value) == (Phase.CLEARED, BEGUN, 12)
        assert judge.firing == ()

    @pytest.mark.spec("WATCH-2")
    def test_what_was_not_looked_at_in_between_did_not_last(self) -> None:
        assert judged(AlertJudge(), idle((0, 0), (600, 0))) == []

    @pytest.mark.spec("WATCH-2")
    def test_each_card_by_itself(self) -> None:
        looks = [
            (at, (*card(at, used=0), *card(at, uuid=OTHER_CARD, used=99))) for at in (0, 30, 60, 90)
        ]
        assert [each.subject for each in judged(AlertJudge(), looks)] == [CARD]

    @pytest.mark.spec("WATCH-2")
    def test_a_card_that_vanishes_is_unknown_and_not_fine(self) -> None:
        judge = AlertJudge()
        judged(judge, idle((0, 0), (30, 0), (90, 0)))
        (unknown,) = judged(judge, [(120, [absent("gpu_utilization_percent")])])
        assert unknown.phase is Phase.UNKNOWN
        assert unknown.value is None, "no number that nobody measured"
        assert unknown.since == BEGUN
        assert judged(judge, [(150, [])]) == [], "and it is said once"
        assert [each.phase for each in judge.firing] == [Phase.UNKNOWN]
        (cleared,) = judged(judge, idle((180, 80)))
        assert cleared.phase is Phase.CLEARED

    @pytest.mark.spec("WATCH-2")
    def test_a_card_that_comes_back_idle_fires_once_that_is_sure(self) -> None:
        judge = AlertJudge()
        judged(judge, [*idle((0, 0), (30, 0), (90, 0)), (120, [])])
        changes = judged(judge, idle((150, 0), (180, 0), (210, 0), (240, 0)))
        assert phases(changes) == [("gpu_idle", "firing")]
        assert changes[0].since == BEGUN


def hanging(
    judge: AlertJudge,
    times: Iterable[float],
    *,
    watts: float = 90,
    used: float = 100,
    **more: float,
) -> list[Alert]:
    written = more.get("written", 0.0)
    looks = [
        (
            at,
            (
                *card(at, used=used, watts=watts, limit_watts=400),
                sample("io_write_bytes_total", written, at),
                sample("cpu_seconds_total", at, at),
            ),
        )
        for at in times
    ]
    return judged(judge, looks, more.get("output"))


class TestAHang:
    @pytest.mark.spec("WATCH-2")
    def test_full_use_at_idle_power_without_progress(self) -> None:
        judge = AlertJudge()
        assert hanging(judge, (0, 30), watts=380) == []
        assert hanging(judge, (60, 90)) == []
        (fired,) = hanging(judge, (120,))
        assert (fired.rule, fired.severity) == (AlertRule.GPU_HANG, Severity.CRITICAL)
        assert (fired.value, fired.bound, fired.unit) == (90, 160, "W")
        assert fired.since == BEGUN + 60
        assert "hang" in fired.text

    @pytest.mark.spec("WATCH-2")
    def test_a_host_that_spins_is_no_progress(self) -> None:
        """The story above has a whole core busy all along."""
        judge = AlertJudge()
        hanging(judge, (0,), watts=380)
        hanging(judge, (30,), watts=380, written=1e8)
        hanging(judge, (60, 90, 120), written=1e8)
        assert judge.progress.processor == BEGUN + 120
        assert judge.progress.storage == BEGUN + 30
        assert judge.firing

    @pytest.mark.spec("WATCH-2")
    @pytest.mark.parametrize("sign", ["written", "output"])
    def test_a_job_that_gets_on_does_not_hang(self, sign: str) -> None:
        judge = AlertJudge()
        hanging(judge, (0, 30), watts=380)
        for at in (60, 90, 120, 150, 180):
            more = {"written": at * 1e6} if sign == "written" else {"output": BEGUN + at}
            assert hanging(judge, (at,), **more) == []

    @pytest.mark.spec("WATCH-2")
    def test_a_job_at_work_draws_power(self) -> None:
        assert hanging(AlertJudge(), range(0, 600, 30), watts=380) == []

    @pytest.mark.spec("WATCH-2")
    def test_light_work_that_never_drew_more_is_given_ten_minutes(self) -> None:
        judge = AlertJudge()
        assert hanging(judge, range(0, 630, 30)) == []
        assert phases(hanging(judge, (630,))) == [("gpu_hang", "firing")]

    @pytest.mark.spec("WATCH-2")
    def test_where_nothing_tells_of_progress_nothing_is_said(self) -> None:
        looks = [
            (at, card(at, used=100, watts=380 if at < 60 else 90, limit_watts=400))
            for at in range(0, 300, 30)
        ]
        assert judged(AlertJudge(), looks) == []

    @pytest.mark.spec("WATCH-2")
    def test_it_passes_when_output_comes(self) -> None:
        judge = AlertJudge()
        hanging(judge, (0, 30), watts=380)
        hanging(judge, (60, 90, 120))
        (cleared,) = hanging(judge, (150,), output=BEGUN + 140)
        assert cleared.phase is Phase.CLEARED


class TestGpuMemory:
    @pytest.mark.spec("WATCH-2")
    def test_above_the_bound_and_below_it_again(self) -> None:
        judge = AlertJudge()
        told = judged(judge, [(0, card(0, memory=(96e9, 100e9)))])
        assert phases(told) == [("gpu_memory", "firing")]
        assert told[0].value == pytest.approx(96)
        assert judged(judge, [(30, card(30, memory=(94e9, 100e9)))]) == [], "it does not flap"
        assert phases(judged(judge, [(60, card(60, memory=(92e9, 100e9)))])) == [
            ("gpu_memory", "cleared")
        ]

    @pytest.mark.spec("WATCH-2")
    def test_use_without_a_size_is_no_share(self) -> None:
        used = sample("gpu_memory_used_bytes", 96e9, gpu_uuid=CARD)
        assert judged(AlertJudge(), [(0, [used])]) == []


def traffic(
    *looks: tuple[float, float, float], scope: str = "job"
) -> list[tuple[float, Iterable[MetricReading]]]:
    return [
        (
            at,
            (
                sample("network_packets_total", packets, at, scope=scope),
                sample("network_errors_total", errors, at, scope=scope),
            ),
        )
        for at, packets, errors in looks
    ]


class TestNetworkErrors:
    @pytest.mark.spec("WATCH-2")
    def test_more_than_one_in_a_thousand(self) -> None:
        judge = AlertJudge()
        assert judged(judge, traffic((0, 5e6, 9e5))) == [], "the first look is no rise"
        assert judged(judge, traffic((30, 6e6, 9e5 + 900))) == []
        (fired,) = judged(judge, traffic((60, 7e6, 9e5 + 900 + 2000)))
        assert fired.value == pytest.approx(0.2)
        assert fired.bound == pytest.approx(0.1)
        assert phases(judged(judge, traffic((90, 8e6, 9e5 + 2900)))) == [
            ("network_errors", "cleared")
        ]

    @pytest.mark.spec("WATCH-2")
    def test_a_few_packets_make_no_share(self) -> None:
        assert judged(AlertJudge(), traffic((0, 0, 0), (30, 100, 50))) == []

    @pytest.mark.spec("WATCH-2")
    def test_a_counter_that_began_anew_is_no_rise(self) -> None:
        assert judged(AlertJudge(), traffic((0, 1e6, 10), (30, 5e5, 900), (60, 5e5, 900))) == []

    @pytest.mark.spec("WATCH-2")
    def test_the_nodes_own_is_called_that(self) -> None:
        changes = judged(AlertJudge(), traffic((0, 0, 0), (30, 1e5, 1e3), scope="node"))
        assert "whole node" in changes[0].text


EDGES = (0.0001, 0.001, 0.002, 0.008, 0.016, 0.5)


class Storage:
    """Counts operations in buckets, as the kernel does."""

    def __init__(self) -> None:
        self.counts = dict.fromkeys(EDGES, 0.0)

    def take(self, count: float, took_s: float) -> None:
        for edge in EDGES:
            if took_s <= edge:
                self.counts[edge] += count

    def look(self, at: float, *, beyond: float = 0.0) -> tuple[float, Iterable[MetricReading]]:
        total = max(self.counts.values()) + beyond
        buckets = {f"{edge:g}": count for edge, count in self.counts.items()} | {"+Inf": total}
        return at, [
            sample("io_latency_seconds_bucket", count, at, le=edge)
            for edge, count in buckets.items()
        ]


class TestIoLatency:
    def usual(self, judge: AlertJudge, storage: Storage, looks: int) -> float:
        for number in range(looks):
            storage.take(100, 0.0001)
            assert judged(judge, [storage.look(number * 30)]) == []
        return looks * 30.0

    @pytest.mark.spec("WATCH-2")
    def test_more_than_ten_milliseconds(self) -> None:
        judge, storage = AlertJudge(), Storage()
        storage.take(1e6, 0.4)
        assert judged(judge, [storage.look(0)]) == [], "what was before is no news"
        storage.take(100, 0.016)
        (fired,) = judged(judge, [storage.look(30)])
        assert (fired.value, fired.bound, fired.unit) == (16, 10, "ms")
        storage.take(100, 0.008)
        assert phases(judged(judge, [storage.look(60)])) == [("io_latency", "cleared")]

    @pytest.mark.spec("WATCH-2")
    def test_longer_than_any_bucket_is_no_silence(self) -> None:
        judge, storage = AlertJudge(), Storage()
        storage.take(100, 0.0001)
        judged(judge, [storage.look(0)])
        (fired,) = judged(judge, [storage.look(30, beyond=100)])
        assert fired.value is None
        assert "longer than 500 ms" in fired.text

    @pytest.mark.spec("WATCH-2")
    def test_a_jump_against_its_own_past(self) -> None:
        judge, storage = AlertJudge(), Storage()
        at = self.usual(judge, storage, 12)
        storage.take(100, 0.002)
        (fired,) = judged(judge, [storage.look(at)])
        assert (fired.value, fired.bound) == (2, 1)
        assert "usual for this job" in fired.text

    @pytest.mark.spec("WATCH-2")
    def test_without_a_past_it_is_no_jump(self) -> None:
        judge, storage = AlertJudge(), Storage()
        at = self.usual(judge, storage, 5)
        storage.take(100, 0.002)
        assert judged(judge, [storage.look(at)]) == []

    @pytest.mark.spec("WATCH-2")
    def test_a_slowness_that_lasts_does_not_become_the_usual(self) -> None:
        judge, storage = AlertJudge(), Storage()
        at = self.usual(judge, storage, 12)
        changes = []
        for number in range(100):
            storage.take(100, 0.002)
            changes += judged(judge, [storage.look(at + number * 30)])
        assert phases(changes) == [("io_latency", "firing")]

    @pytest.mark.spec("WATCH-2")
    def test_it_passes_when_nothing_is_read_or_written(self) -> None:
        judge, storage = AlertJudge(), Storage()
        judged(judge, [storage.look(0)])
        storage.take(100, 0.016)
        judged(judge, [storage.look(30)])
        assert phases(judged(judge, [storage.look(60)])) == [("io_latency", "cleared")]

    @pytest.mark.spec("WATCH-2")
    def test_a_handful_of_slow_reads_is_not_judged(self) -> None:
        judge, storage = AlertJudge(), Storage()
        judged(judge, [storage.look(0)])
        storage.take(5, 0.4)
        assert judged(judge, [storage.look(30)]) == []


class TestOomKill:
    def killed(self, at: float, count: float) -> tuple[float, Iterable[MetricReading]]:
        return at, [
            sample("memory_oom_kills_total", count, at),
            sample("memory_limit_bytes", 4 * 1024**3, at),
        ]

    @pytest.mark.spec("WATCH-2")
    def test_a_kill_fires_at_once_and_passes_after_ten_minutes(self) -> None:
        judge = AlertJudge()
        (fired,) = judged(judge, [self.killed(0, 0), self.killed(30, 1)])
        assert (fired.rule, fired.severity, fired.value) == (
            AlertRule.OOM_KILL,
            Severity.CRITICAL,
            1,
        )
        assert "4 GiB" in fired.text
        assert "--mem" in fired.remedy
        assert judged(judge, [self.killed(60, 1), self.killed(630, 1)]) == []
        assert phases(judged(judge, [self.killed(660, 1)])) == [("oom_kill", "cleared")]

    @pytest.mark.spec("WATCH-2")
    def test_the_first_look_is_no_kill(self) -> None:
        assert judged(AlertJudge(), [self.killed(0, 7), self.killed(30, 7)]) == []

    @pytest.mark.spec("WATCH-2")
    def test_another_kill_lengthens_the_same_alert(self) -> None:
        judge = AlertJudge()
        looks = [self.killed(0, 0), self.killed(30, 1), self.killed(600, 3), self.killed(900, 3)]
        assert phases(judged(judge, looks)) == [("oom_kill", "firing")]
        assert judge.firing[0].value == 3

    @pytest.mark.spec("WATCH-2")
    def test_without_its_counter_it_is_unknown(self) -> None:
        judge = AlertJudge()
        judged(judge, [self.killed(0, 0), self.killed(30, 1)])
        changes = judged(judge, [(60, [absent("memory_oom_kills_total")])])
        assert phases(changes) == [("oom_kill", "unknown")]


class TestThrottle:
    def slowed(self, at: float, **reasons: float) -> tuple[float, Iterable[MetricReading]]:
        return at, [
            sample("gpu_throttled", value, at, gpu_uuid=CARD, reason=reason)
            for reason, value in reasons.items()
        ]

    @pytest.mark.spec("WATCH-2")
    def test_heat_fires_at_once(self) -> None:
        judge = AlertJudge()
        (fired,) = judged(judge, [self.slowed(0, hw_thermal=1, hw_slowdown=1, sw_power_cap=0)])
        assert fired.severity is Severity.CRITICAL
        assert "heat" in fired.text
        assert phases(judged(judge, [self.slowed(30, hw_thermal=0)])) == [("throttle", "cleared")]

    @pytest.mark.spec("WATCH-2")
    def test_power_fires_once_it_lasts(self) -> None:
        judge = AlertJudge()
        looks = [self.slowed(at, sw_power_cap=1) for at in (0, 30)]
        assert judged(judge, looks) == []
        (fired,) = judged(judge, [self.slowed(60, sw_power_cap=1)])
        assert (fired.severity, fired.since) == (Severity.WARNING, BEGUN)

    @pytest.mark.spec("WATCH-2")
    def test_a_power_brake_is_no_heat(self) -> None:
        looks = [self.slowed(0, power_brake=1, hw_slowdown=1)]
        (fired,) = judged(AlertJudge(), looks)
        assert fired.severity is Severity.CRITICAL
        assert "power limit" in fired.text

    @pytest.mark.spec("WATCH-2")
    def test_idle_clocks_are_no_throttle(self) -> None:
        assert judged(AlertJudge(), [self.slowed(0, gpu_idle=1, applications_clocks=1)]) == []


class TestXid:
    def errors(self, at: float, **xids: float) -> tuple[float, Iterable[MetricReading]]:
        counted = [
            sample("gpu_xid_total", count, at, gpu_uuid=CARD, xid=number.removeprefix("x"))
            for number, count in xids.items()
        ]
        none = Absence("gpu_xid_total", "none yet", labels=labelled(gpu_uuid=CARD))
        return at, counted or [none]

    @pytest.mark.spec("WATCH-2")
    def test_one_that_appears_on_a_card_that_was_watched(self) -> None:
        (fired,) = judged(AlertJudge(), [self.errors(0), self.errors(30, x79=1)])
        assert (fired.rule, fired.severity) == (AlertRule.XID, Severity.CRITICAL)
        assert fired.subject == f"{CARD}/xid79"
        assert "fallen off the bus" in fired.text

    @pytest.mark.spec("WATCH-2")
    def test_what_was_there_at_the_first_look_is_not_this_jobs(self) -> None:
        assert judged(AlertJudge(), [self.errors(0, x79=4), self.errors(30, x79=4)]) == []

    @pytest.mark.spec("WATCH-2")
    def test_what_appears_where_nobody_could_look_is_no_news(self) -> None:
        deaf = Absence("gpu_xid_total", "not told", "no events", labelled(gpu_uuid=CARD))
        for blind in ([], [absent("gpu_xid_total")], [deaf]):
            assert judged(AlertJudge(), [(0, blind), self.errors(30, x79=4)]) == []

    @pytest.mark.spec("WATCH-2")
    def test_a_harmless_one_does_not_hide_a_bad_one(self) -> None:
        looks = [self.errors(0), self.errors(30, x31=1), self.errors(60, x31=1, x79=1)]
        changes = judged(AlertJudge(), looks)
        assert [(each.severity, each.subject[-5:]) for each in changes] == [
            (Severity.WARNING, "xid31"),
            (Severity.CRITICAL, "xid79"),
        ]

    @pytest.mark.spec("WATCH-2")
    def test_time_alone_heals_a_program_and_no_card(self) -> None:
        judge = AlertJudge()
        judged(judge, [self.errors(0), self.errors(30, x31=1, x79=1)])
        changes = judged(judge, [self.errors(700, x31=1, x79=1)])
        assert [(each.subject[-5:], each.phase) for each in changes] == [("xid31", Phase.CLEARED)]
        assert [each.subject[-5:] for each in judge.firing] == ["xid79"]

    @pytest.mark.spec("WATCH-2")
    def test_a_card_that_has_gone_makes_it_unknown(self) -> None:
        judge = AlertJudge()
        judged(judge, [self.errors(0), self.errors(30, x79=1)])
        assert phases(judged(judge, [(60, [])])) == [("xid", "unknown")]


class TestEcc:
    def counted(self, at: float, count: float) -> tuple[float, Iterable[MetricReading]]:
        return at, [sample("gpu_ecc_uncorrected_total", count, at, gpu_uuid=CARD)]

    @pytest.mark.spec("WATCH-2")
    def test_a_rise_fires(self) -> None:
        (fired,) = judged(AlertJudge(), [self.counted(0, 2), self.counted(30, 3)])
        assert (fired.rule, fired.severity, fired.value) == (AlertRule.ECC, Severity.CRITICAL, 1)

    @pytest.mark.spec("WATCH-2")
    def test_a_reload_of_the_driver_is_no_rise(self) -> None:
        looks = [self.counted(0, 5), self.counted(30, 0), self.counted(60, 0)]
        assert judged(AlertJudge(), looks) == []


@pytest.mark.spec("WATCH-2")
def test_bounds_are_the_sites() -> None:
    judge = AlertJudge(Thresholds(gpu_memory_percent=50))
    assert phases(judged(judge, [(0, card(0, memory=(60e9, 100e9)))])) == [("gpu_memory", "firing")]


@pytest.mark.spec("WATCH-2")
def test_a_snapshot_from_before_changes_nothing() -> None:
    judge = AlertJudge()
    judged(judge, idle((0, 0), (30, 0), (90, 0)))
    assert judged(judge, idle((60, 99), (90, 99))) == []
    assert len(judge.firing) == 1


def test_a_judge_for_each_life() -> None:
    make = judge_factory(Thresholds())
    first, second = make(), make()
    for at in (0, 30, 90):
        first.see(snapshot(at, *card(at, used=0)), None)
    assert first.firing
    assert not second.firing


@pytest.mark.spec("WATCH-2")
def test_progress_is_when_each_sign_last_moved() -> None:
    judge = AlertJudge()

    def look(at: float, cpu_s: float, written: float, sent: float, scope: str) -> JobSnapshot:
        return snapshot(
            at,
            sample("cpu_seconds_total", cpu_s, at),
            sample("io_write_bytes_total", written, at),
            sample("network_tx_bytes_total", sent, at, scope=scope),
        )

    judge.see(look(0, 0, 0, 0, "job"), None)
    assert judge.progress == Progress()
    judge.see(look(30, 15, 0, 1e9, "job"), BEGUN + 12)
    assert judge.progress == Progress(output=BEGUN + 12, processor=BEGUN + 30, network=BEGUN + 30)
    judge.see(look(60, 15.1, 1e9, 1e9, "job"), None)
    assert judge.progress.processor == BEGUN + 30, "a third of a percent is nothing"
    assert judge.progress.storage == BEGUN + 60
    assert judge.progress.last == BEGUN + 60


@pytest.mark.spec("WATCH-2")
def test_a_nodes_whole_traffic_is_no_sign_of_this_job() -> None:
    judge = AlertJudge()
    for at in (0, 30):
        judge.see(snapshot(at, sample("network_tx_bytes_total", at * 1e9, at, scope="node")), None)
    assert judge.progress.network is None
