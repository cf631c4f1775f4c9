"""Every way in which a job is sick: the right rule says so of the right one, and no other cries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from lattice.domain.alert import AlertRule, Phase, Progress, Severity
from lattice.domain.jobfacts import GpuFact, LinkCounts, LinkFact, TransportFact
from lattice.domain.metric import Absence
from lattice.domain.node_snapshot import NodeUnreachable
from lattice.features.diag.model import LinkTarget, MountTarget, Subject, Targets, Verdict
from lattice.features.diag.rules.engine import verdict_of
from tests.fakes.node_looks import alert
from tests.unit.features.diag.wards import (
    BEGUN,
    GIB,
    NOW,
    Ward,
    healthy,
    link,
    mount,
    refact,
    still,
    task,
)

SICK = "n3"


def _relink(ward: Ward, place: int, change: LinkFact, *, both: bool = False) -> None:
    for name in ("facts", "earlier") if both else ("facts",):
        facts = getattr(ward[place], name)
        rest = tuple(each for each in facts.links if each.name != change.name)
        setattr(ward[place], name, replace(facts, links=(change, *rest)))


def gpus_idle(ward: Ward) -> None:
    ward[2].cards = {uuid: {"used": 0.0, "watts": 80.0} for uuid in ward[2].cards}
    ward[2].throttled = {}
    # All nodes alike: one that idles alone is a straggler as well.
    for each in ward.nodes:
        each.cards = {uuid: {"used": 1.0, "watts": 80.0} for uuid in each.cards}
        each.throttled = {}


def collective_hangs(ward: Ward) -> None:
    for each in ward.nodes:
        each.cards = {uuid: {"used": 100.0, "watts": 120.0} for uuid in each.cards}
        each.throttled = {}
        each.progress = Progress(
            output=NOW - 900, processor=NOW, storage=NOW - 900, network=NOW - 900
        )
        refact(each, last_output=NOW - 900)


def rank_is_slow(ward: Ward) -> None:
    """It alone computes; the others wait for it."""
    for each in ward.nodes:
        earlier, facts = each.earlier, each.facts
        assert earlier is not None
        assert facts is not None
        busy = 95.0 if each.name == SICK else 20.0
        tasks = tuple(replace(one, cpu_seconds=1000.0 + busy) for one in facts.tasks)
        refact(each, tasks=tasks)


def card_is_slow(ward: Ward) -> None:
    for each in ward.nodes:
        each.cards = {uuid: {"used": 95.0, "watts": 500.0} for uuid in each.cards}
        each.throttled = {}
    ward[2].cards = {uuid: {"used": 60.0, "watts": 400.0} for uuid in ward[2].cards}


def loader_is_slow(ward: Ward) -> None:
    for each in ward.nodes:
        each.cards = {uuid: {"used": 30.0, "watts": 200.0} for uuid in each.cards}
        each.throttled = {}
    ward[2].io_pressure = 60.0


def loader_has_too_few_cores(ward: Ward) -> None:
    for each in ward.nodes:
        each.cards = {uuid: {"used": 30.0, "watts": 200.0} for uuid in each.cards}
        each.throttled = {}
        each.cpu_percent = 700.0
    ward[2].cpu_percent = 1590.0


def card_is_hot(ward: Ward) -> None:
    ward[2].throttled = {next(iter(ward[2].cards)): ("hw_thermal",)}


def card_is_capped_below_its_limit(ward: Ward) -> None:
    uuid = next(iter(ward[2].cards))
    ward[2].cards[uuid]["watts"] = 300.0
    ward[2].throttled = {uuid: ("sw_power_cap",)}


def memory_is_short(ward: Ward) -> None:
    ward[2].memory = 0.95 * ward[2].limit


def memory_stalls(ward: Ward) -> None:
    ward[2].memory_pressure = 40.0


def killed_for_memory(ward: Ward) -> None:
    ward[2].oom_kills = 1.0


def memory_error(ward: Ward) -> None:
    ward[2].new_ecc = 2.0


def driver_error(ward: Ward) -> None:
    ward[2].new_xids = {"79": 1.0}


def card_fails(ward: Ward) -> None:
    uuid = next(iter(ward[2].cards))
    refact(ward[2], gpus=(GpuFact(uuid=uuid, health="failure", words="the card fell off the bus"),))


def few_lanes(ward: Ward) -> None:
    uuid = next(iter(ward[2].cards))
    refact(ward[2], gpus=(GpuFact(uuid=uuid, health="ok", pcie_width=4, pcie_best_width=16),))


def link_is_slow(ward: Ward) -> None:
    _relink(ward, 2, link(speed_bits=1e11))


def link_is_slower_than_elsewhere(ward: Ward) -> None:
    for place in range(4):
        speed = 1e10 if place == 2 else 2.5e10
        _relink(ward, place, link("eno1", best_speed_bits=None, speed_bits=speed))


def link_has_errors(ward: Ward) -> None:
    _relink(ward, 2, link(errors=5e5))


def port_without_packets_has_errors(ward: Ward) -> None:
    for name in ("facts", "earlier"):
        facts = getattr(ward[2], name)
        errors = 500.0 if name == "facts" else 0.0
        links = tuple(replace(each, packets=None, errors=errors) for each in facts.links[:1])
        setattr(ward[2], name, replace(facts, links=(*links, *facts.links[1:])))


def packets_have_errors(ward: Ward) -> None:
    ward[2].errors_s = ward[2].packets_s / 100


def link_is_down(ward: Ward) -> None:
    _relink(ward, 2, link(up=False, changed=NOW - 40, downs=2.0, speed_bits=None))


def link_is_down_and_nobody_knows_since_when(ward: Ward) -> None:
    of_job = LinkCounts(seconds=3600, downs=1.0)
    down = link(up=False, changed=None, downs=2.0, speed_bits=None, of_job=of_job)
    _relink(ward, 2, down)


def link_is_down_from_the_start(ward: Ward) -> None:
    _relink(ward, 2, link(up=False, changed=BEGUN - 900, downs=1.0, speed_bits=None))


def link_flaps(ward: Ward) -> None:
    _relink(ward, 2, link(downs=4.0, changed=NOW - 12))


def link_flaps_at_the_first_look(ward: Ward) -> None:
    of_job = LinkCounts(seconds=3600, packets=1e8, errors=0.0, waits=0.0, downs=3.0)
    for each in ward.nodes:
        each.earlier = None
    _relink(ward, 2, link(downs=4.0, changed=NOW - 12, of_job=of_job))


def segments_are_lost(ward: Ward) -> None:
    facts, earlier = ward[2].facts, ward[2].earlier
    assert facts is not None
    assert earlier is not None
    refact(ward[2], transport=TransportFact(seconds=3600, sent_segments=1e7, retransmits=4e4))


def segments_of_the_job_are_lost(ward: Ward) -> None:
    ward[2].again_s = ward[2].packets_s * 0.04


def port_waits(ward: Ward) -> None:
    _relink(ward, 2, link(waits=5e11, rx_bytes=4e12, tx_bytes=4e12))


def slingshot_pauses(ward: Ward) -> None:
    paused = link(waits=30e9, waits_unit="ns", rx_bytes=4e12, tx_bytes=4e12)
    _relink(ward, 2, paused)


def ethernet_is_marked(ward: Ward) -> None:
    _relink(ward, 2, link(waits=4e7, waits_unit="marked packets", rx_bytes=4e12, tx_bytes=4e12))


def switch_marks(ward: Ward) -> None:
    transport = TransportFact(
        seconds=3600, sent_segments=1e7, retransmits=0.0, received_packets=1e7, ecn_marks=2e6
    )
    refact(ward[2], transport=transport)


def mount_hangs(ward: Ward) -> None:
    hung = mount(answered_s=None, waited_s=40.0)
    refact(ward[2], mounts=(hung, mount("/home")), tasks=(task(2, state="D"),))


def mount_hangs_and_so_does_the_job(ward: Ward) -> None:
    mount_hangs(ward)
    still(ward)


def mount_is_stale(ward: Ward) -> None:
    refact(ward[2], mounts=(mount(trouble="Stale file handle"), mount("/home")))


def mount_is_slow(ward: Ward) -> None:
    refact(ward[2], mounts=(mount(answered_s=2.5), mount("/home")))


def mount_is_below_its_floor(ward: Ward) -> None:
    ward.targets = Targets(mounts=(MountTarget(path="/scratch", read_bytes_s=1e9),))
    ward[2].io_pressure = 70.0


def reads_are_slow(ward: Ward) -> None:
    ward[2].latency = {"0.001": 0.2, "1.0": 0.5, "2.0": 0.8, "+Inf": 1.0}


def clock_is_off(ward: Ward) -> None:
    refact(ward[2], clock_ahead_s=-4.2)


def output_is_buffered(ward: Ward) -> None:
    for each in ward.nodes:
        each.progress = Progress(processor=NOW, storage=NOW, network=NOW)
        refact(each, last_output=None)
    refact(ward[2], tasks=(task(2, python_unbuffered=False, cpu_seconds=1040.0),))


def job_hangs(ward: Ward) -> None:
    still(ward)
    refact(ward[2], tasks=(task(2, waits_in="hrtimer_nanosleep"),))


Sickness = Callable[[Ward], None]
SICKNESSES: list[tuple[Sickness, str, Verdict, str]] = [
    (gpus_idle, "gpu_idle", Verdict.ATTENTION, ""),
    (collective_hangs, "gpu_hang", Verdict.BAD, ""),
    (rank_is_slow, "straggler", Verdict.ATTENTION, SICK),
    (card_is_slow, "straggler", Verdict.ATTENTION, SICK),
    (loader_is_slow, "data_loader", Verdict.ATTENTION, SICK),
    (loader_has_too_few_cores, "data_loader", Verdict.ATTENTION, SICK),
    (card_is_hot, "throttle", Verdict.BAD, SICK),
    (card_is_capped_below_its_limit, "throttle", Verdict.ATTENTION, SICK),
    (memory_is_short, "memory_limit", Verdict.ATTENTION, SICK),
    (memory_stalls, "memory_limit", Verdict.ATTENTION, SICK),
    (killed_for_memory, "oom_kill", Verdict.BAD, SICK),
    (memory_error, "gpu_errors", Verdict.BAD, SICK),
    (driver_error, "gpu_errors", Verdict.BAD, SICK),
    (card_fails, "gpu_health", Verdict.BAD, SICK),
    (few_lanes, "gpu_health", Verdict.ATTENTION, SICK),
    (link_is_slow, "link_speed", Verdict.BAD, SICK),
    (link_is_slower_than_elsewhere, "link_speed", Verdict.BAD, SICK),
    (link_has_errors, "link_errors", Verdict.BAD, SICK),
    (port_without_packets_has_errors, "link_errors", Verdict.BAD, SICK),
    (packets_have_errors, "link_errors", Verdict.BAD, SICK),
    (link_is_down, "link_down", Verdict.BAD, SICK),
    (link_is_down_and_nobody_knows_since_when, "link_down", Verdict.BAD, SICK),
    (link_is_down_from_the_start, "link_down", Verdict.ATTENTION, SICK),
    (link_flaps, "link_flapping", Verdict.ATTENTION, SICK),
    (link_flaps_at_the_first_look, "link_flapping", Verdict.ATTENTION, SICK),
    (segments_are_lost, "retransmits", Verdict.ATTENTION, SICK),
    (segments_of_the_job_are_lost, "retransmits", Verdict.BAD, SICK),
    (port_waits, "congestion", Verdict.ATTENTION, SICK),
    (slingshot_pauses, "congestion", Verdict.ATTENTION, SICK),
    (ethernet_is_marked, "congestion", Verdict.ATTENTION, SICK),
    (switch_marks, "congestion", Verdict.ATTENTION, SICK),
    (mount_hangs, "hung_mount", Verdict.BAD, SICK),
    (mount_hangs_and_so_does_the_job, "hung_mount", Verdict.BAD, SICK),
    (mount_is_stale, "hung_mount", Verdict.BAD, SICK),
    (mount_is_slow, "slow_mount", Verdict.ATTENTION, SICK),
    (mount_is_below_its_floor, "slow_mount", Verdict.ATTENTION, SICK),
    (reads_are_slow, "io_latency", Verdict.ATTENTION, SICK),
    (clock_is_off, "clock", Verdict.ATTENTION, SICK),
    (output_is_buffered, "buffered_output", Verdict.ATTENTION, SICK),
    (job_hangs, "job_hang", Verdict.BAD, SICK),
]


@pytest.mark.spec("DIAG-1", "DIAG-5")
@pytest.mark.parametrize(
    ("sickness", "rule", "verdict", "node"),
    SICKNESSES,
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_the_right_rule_says_so_of_the_right_one_and_no_other_cries(
    sickness: Sickness, rule: str, verdict: Verdict, node: str
) -> None:
    for seed in (2, 11, 23):
        ward = healthy(seed)
        sickness(ward)
        sick = ward.sick()
        assert set(sick) == {rule}, {name: each.evidence for name, each in sick.items()}
        found = sick[rule]
        assert found.verdict is verdict, found.evidence
        if node:
            assert {each.node for each in found.subjects} == {node}
            assert node in found.evidence
        assert found.remedy
        assert verdict_of(ward.judged()) is verdict


@pytest.mark.spec("DIAG-1")
def test_who_stands_elsewhere_than_the_rest_is_named_as_the_rank_that_hangs() -> None:
    ward = healthy(5)
    job_hangs(ward)
    found = ward.sick()["job_hang"]
    assert found.subjects == (Subject(node=SICK, rank=2),)
    assert "rank 2 on n3 stands in hrtimer_nanosleep" in found.evidence


@pytest.mark.spec("DIAG-1")
def test_a_slow_rank_is_named_by_its_number() -> None:
    ward = healthy(5)
    rank_is_slow(ward)
    assert ward.sick()["straggler"].subjects == (Subject(node=SICK, rank=2),)


@pytest.mark.spec("DIAG-1")
def test_a_cause_names_what_follows_from_it() -> None:
    ward = healthy(5)
    mount_hangs_and_so_does_the_job(ward)
    assert "from this follows: Last sign of progress" in ward.sick()["hung_mount"].evidence


@pytest.mark.spec("DIAG-1")
@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (AlertRule.GPU_IDLE, "gpu_idle"),
        (AlertRule.GPU_HANG, "gpu_hang"),
        (AlertRule.ECC, "gpu_errors"),
    ],
)
def test_what_a_node_has_judged_over_time_counts(rule: AlertRule, expected: str) -> None:
    ward = healthy(5)
    uuid = next(iter(ward[2].cards))
    if rule is AlertRule.GPU_IDLE:
        ward[2].cards[uuid] = {"used": 2.0, "watts": 80.0}
        for each in ward.nodes:
            each.cards = {uuid: {"used": 2.0, "watts": 80.0} for uuid in each.cards}
            each.throttled = {}
        ward.no_traces = "the metric store does not answer"
    ward[2].firing = (alert(rule=rule, subject=uuid, severity=Severity.CRITICAL),)
    found = ward.sick()
    assert set(found) == {expected}
    assert {each.node for each in found[expected].subjects} == {SICK}


@pytest.mark.spec("DIAG-1")
def test_an_alert_that_has_passed_says_nothing() -> None:
    ward = healthy(5)
    uuid = next(iter(ward[2].cards))
    ward[2].firing = (alert(rule=AlertRule.GPU_HANG, subject=uuid, phase=Phase.UNKNOWN),)
    assert not ward.sick()


@pytest.mark.spec("DIAG-4", "DIAG-5")
def test_an_error_of_the_program_is_not_blamed_on_the_card() -> None:
    ward = healthy(5)
    ward[2].new_xids = {"31": 1.0}
    found = ward.sick()["gpu_errors"]
    assert found.verdict is Verdict.ATTENTION
    assert "CUDA_LAUNCH_BLOCKING" in found.remedy


@pytest.mark.spec("DIAG-5")
def test_the_remedy_for_memory_names_how_much_to_ask_for() -> None:
    ward = healthy(5)
    memory_is_short(ward)
    ward[2].limit, ward[2].memory = 8 * GIB, 7.9 * GIB
    assert "--mem=10G" in ward.sick()["memory_limit"].remedy


@pytest.mark.spec("DIAG-1", "DIAG-2")
def test_a_site_says_how_fast_its_links_are_to_be() -> None:
    ward = healthy(5)
    ward.targets = Targets(links=(LinkTarget(name="hsn*", speed_bits=4e11),))
    found = ward.sick()["link_speed"]
    assert {each.thing for each in found.subjects} == {"hsn0"}


@pytest.mark.spec("SRC-2")
def test_a_node_that_does_not_answer_is_unknown_and_never_well() -> None:
    ward = healthy(5)
    ward[2].silence = NodeUnreachable(SICK, "its agent is lost", since=NOW - 40)
    found = ward.judged()
    told = [each for each in found if each.lack is not None and each.lack.counts]
    assert [(each.rule, each.reason) for each in told] == [
        ("node_silent", "its agent is lost, for 40 s")
    ]
    assert verdict_of(found) is Verdict.UNKNOWN
    for each in found:
        if each.verdict is Verdict.OK and each.rule != "group_span":
            assert SICK not in {subject.node for subject in each.subjects}
            assert each.covered.measured < each.covered.nodes


@pytest.mark.spec("SRC-2")
def test_what_nobody_measured_is_unknown_for_every_rule() -> None:
    ward = healthy(5)
    for each in ward.nodes:
        each.silence = NodeUnreachable(each.name, "its agent is lost")
    ward.no_traces = "the metric store does not answer"
    found = ward.judged()
    assert {each.verdict for each in found if each.rule != "group_span"} == {Verdict.UNKNOWN}
    assert len({each.rule for each in found}) >= 20


@pytest.mark.spec("SRC-2")
@pytest.mark.parametrize(
    ("metric", "rule"),
    [
        ("gpu_utilization_percent", "gpu_idle"),
        ("gpu_power_watts", "gpu_hang"),
        ("gpu_throttled", "throttle"),
        ("gpu_ecc_uncorrected_total", "gpu_errors"),
        ("memory_used_bytes", "memory_limit"),
        ("memory_limit_bytes", "memory_limit"),
        ("memory_oom_kills_total", "oom_kill"),
    ],
)
def test_a_metric_that_is_missing_is_unknown_in_the_words_of_who_failed(
    metric: str, rule: str
) -> None:
    ward = healthy(5)
    for each in ward.nodes:
        each.absences = {metric: Absence(metric, "NVML is broken", "Unknown Error")}
    found = [each for each in ward.judged() if each.rule == rule]
    assert {each.verdict for each in found} == {Verdict.UNKNOWN}
    assert found[0].reason == "NVML is broken (Unknown Error)"
    assert verdict_of(ward.judged()) is Verdict.UNKNOWN


@pytest.mark.spec("SRC-2")
@pytest.mark.parametrize(
    ("part", "rules"),
    [
        ("links", {"link_down", "link_flapping", "link_speed"}),
        ("mounts", {"hung_mount"}),
        ("tasks", {"buffered_output"}),
        ("gpus", {"gpu_health"}),
    ],
)
def test_a_kind_of_fact_that_is_missing_is_unknown(part: str, rules: set[str]) -> None:
    ward = healthy(5)
    for each in ward.nodes:
        refact(each, **{part: ()})
    found = ward.judged()
    for rule in rules:
        assert {each.verdict for each in found if each.rule == rule} == {Verdict.UNKNOWN}, rule


@pytest.mark.spec("DIAG-2")
def test_a_port_that_was_down_on_every_node_before_the_job_is_no_finding() -> None:
    ward = healthy(5)
    for place in range(4):
        _relink(ward, place, link("boot0", up=False, changed=None, downs=1.0, speed_bits=None))
    assert not ward.sick()


@pytest.mark.spec("DIAG-2", "SRC-2")
def test_what_tcp_sent_again_before_the_job_is_not_blamed_on_it() -> None:
    ward = healthy(5)
    for each in ward.nodes:
        each.absences = {"tcp_retransmits_total": Absence("tcp_retransmits_total", "no eBPF")}
        each.earlier = None
        refact(each, transport=TransportFact(sent_segments=1e9, retransmits=5e8))
    assert ward.verdict("retransmits") == {Verdict.UNKNOWN}


@pytest.mark.parametrize(
    ("percent", "verdict"), [(1.9, Verdict.OK), (9.9, Verdict.ATTENTION), (10.1, Verdict.BAD)]
)
def test_packets_sent_again_are_bad_from_five_times_the_bound_on(
    percent: float, verdict: Verdict
) -> None:
    ward = healthy(5)
    ward.targets = replace(ward.targets, retransmit_percent=2.0)
    again = TransportFact(seconds=3600, sent_segments=1e7, retransmits=1e4 * percent)
    refact(ward[2], transport=again)
    assert ward.verdict("retransmits") == {verdict}


@pytest.mark.spec("DIAG-3")
def test_how_long_reads_and_writes_take_is_told_in_three_numbers() -> None:
    found = next(each for each in healthy(5).judged() if each.rule == "io_latency")
    assert found.evidence.startswith("p50 100 µs, p95 1 ms, p99 10 ms on n1, of 1500 reads")
    assert found.measured == 0.01


@pytest.mark.spec("SRC-2")
def test_a_clock_that_was_not_compared_is_unknown() -> None:
    ward = healthy(5)
    for each in ward.nodes:
        refact(each, clock_ahead_s=None)
    assert ward.verdict("clock") == {Verdict.UNKNOWN}


@pytest.mark.spec("DIAG-1", "SRC-2")
def test_without_the_store_the_rest_is_judged() -> None:
    ward = healthy(5)
    ward.no_traces = "the metric store does not answer (timeout)"
    found = ward.judged()
    assert verdict_of(found) is Verdict.UNKNOWN
    assert "the metric store does not answer (timeout)" in {each.reason for each in found}
    assert sum(each.verdict is Verdict.OK for each in found) > 15
