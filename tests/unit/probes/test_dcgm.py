"""The DCGM probe: what an exporter says is read or is an absence; blanks are never numbers."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lattice.domain.metric import Absence, MetricReading, Provenance, Sample, labelled
from lattice.domain.nodejobs import JobIdentity, NodeJob, StartSign
from lattice.probes.dcgm import (
    FIELDS,
    MOST_BYTES,
    NO_GPUS,
    NOT_KNOWN_YET,
    NOT_REPORTED,
    NOT_SET,
    OF_INSTANCES,
    TOO_OLD,
    BadExporter,
    DcgmProbe,
    address_of,
    parse_values,
)
from lattice.probes.dcgm_blanks import is_blank
from lattice.probes.probe import ProbeFailed
from tests.fakes.manual_clock import RECORDED, ManualClock

OCCUPANCY = "gpu_sm_occupancy_percent"
FIELD = "DCGM_FI_PROF_SM_OCCUPANCY"
NOW = RECORDED.timestamp()
PAGE = f"""\
# HELP {FIELD} The fraction of resident warps on a multiprocessor.
# TYPE {FIELD} gauge
{FIELD}{{gpu="0",UUID="GPU-a",device="nvidia0",modelName="NVIDIA A100",Hostname="n1"}} 0.351562
{FIELD}{{gpu="1",UUID="GPU-b",device="nvidia1",modelName="NVIDIA A100",Hostname="n1"}} 0
DCGM_FI_DEV_GPU_UTIL{{gpu="0",UUID="GPU-a"}} 99
"""


def job(number: int = 7) -> NodeJob:
    return NodeJob(identity=JobIdentity("boot", number, number, NOW), started_by=StartSign.FOLDER)


@contextmanager
def exporter(
    answer: bytes, *, hangs: bool = False, asked: Callable[[], None] = lambda: None
) -> Iterator[str]:
    """A server that answers every question with these bytes; or then says nothing more."""
    listener = socket.create_server(("127.0.0.1", 0))
    held: list[socket.socket] = []

    def serve() -> None:
        while True:
            try:
                line, _ = listener.accept()
            except OSError:
                return
            held.append(line)
            line.recv(65536)
            asked()
            line.sendall(answer)
            if not hangs:
                line.shutdown(socket.SHUT_WR)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/metrics"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(5)
        for line in held:
            line.close()


def page(text: str | bytes, status: str = "200 OK") -> bytes:
    body = text if isinstance(text, bytes) else text.encode()
    return f"HTTP/1.0 {status}\r\nContent-Type: text/plain\r\n\r\n".encode() + body


def read(
    text: str | bytes, uuids: tuple[str, ...] | None = ("GPU-a",), metric: str = OCCUPANCY
) -> Sequence[MetricReading]:
    with exporter(page(text)) as url:
        probe = DcgmProbe(url, lambda _: uuids, ManualClock())
        found = probe.read([job()])[job().identity]
    assert {each.metric for each in found} == probe.metrics
    return [each for each in found if each.metric == metric]


ERRORS = "gpu_link_errors_total"


@pytest.mark.spec("TOP-1", "SRC-2")
def test_errors_of_links_are_counted_as_far_as_they_are_exported() -> None:
    text = """\
DCGM_FI_DEV_PCIE_REPLAY_COUNTER{UUID="GPU-a"} 7
DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL{UUID="GPU-a"} 0
DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL{UUID="GPU-a"} 9223372036854775794
DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL{UUID="GPU-a"} 2
DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_L0{UUID="GPU-a"} 99
"""
    found = read(text, ("GPU-a", "GPU-b"), ERRORS)
    told = {
        (each.label("link"), each.label("kind")): each.value
        for each in found
        if isinstance(each, Sample)
    }
    assert told == {("pcie", "replay"): 7, ("nvlink", "crc_flit"): 0, ("nvlink", "recovery"): 2}
    absent = [dict(each.labels) for each in found if isinstance(each, Absence)]
    assert absent == [
        {"gpu_uuid": "GPU-a", "link": "nvlink", "kind": "crc_data"},
        {"gpu_uuid": "GPU-a", "link": "nvlink", "kind": "replay"},
        {"gpu_uuid": "GPU-b"},
    ]


@pytest.mark.spec("TOP-1")
def test_occupancy_is_the_sites_figure_in_percent() -> None:
    assert read(PAGE, ("GPU-a", "GPU-b")) == [
        Sample(OCCUPANCY, 35.1562, NOW, Provenance.SITE_EXPORTER, labelled(gpu_uuid="GPU-a")),
        Sample(OCCUPANCY, 0.0, NOW, Provenance.SITE_EXPORTER, labelled(gpu_uuid="GPU-b")),
    ]


@pytest.mark.spec("SRC-2")
def test_a_card_that_the_exporter_does_not_know_is_absent() -> None:
    assert read(PAGE, ("GPU-c",)) == [
        Absence(OCCUPANCY, NOT_REPORTED, labels=labelled(gpu_uuid="GPU-c"))
    ]


@pytest.mark.spec("SRC-2")
@pytest.mark.parametrize(
    "value",
    [
        "140737488355328",
        "1.40737488355328e+14",
        "14073748835532800",
        "9223372036854775794",
        "2147483632",
        "N/A",
        "NaN",
        "+Inf",
        "",
        "1.5",
        "-0.2",
        "0.5 0.6",
        "0x1",
        "1e999",
    ],
)
def test_a_blank_is_no_number(value: str) -> None:
    (reading,) = read(f'{FIELD}{{UUID="GPU-a"}} {value}\n')
    assert isinstance(reading, Absence)


@pytest.mark.spec("SRC-2")
def test_of_an_instance_that_is_not_named_nothing_is_told() -> None:
    text = f'{FIELD}{{UUID="GPU-a",GPU_I_PROFILE="1g.5gb",GPU_I_ID="7"}} 0.5\n'
    assert read(text) == [Absence(OCCUPANCY, OF_INSTANCES, labels=labelled(gpu_uuid="GPU-a"))]


@pytest.mark.spec("SRC-2")
def test_two_lines_of_one_card_are_no_number() -> None:
    line = f'{FIELD}{{UUID="GPU-a"}} 0.5\n'
    (reading,) = read(line + line.replace("0.5", "0.6"))
    assert isinstance(reading, Absence)


@pytest.mark.spec("SRC-2")
@pytest.mark.parametrize("ago_s", [61, 3600, -120])
def test_an_old_figure_is_not_passed_off_as_fresh(ago_s: int) -> None:
    (reading,) = read(f'{FIELD}{{UUID="GPU-a"}} 0.5 {int((NOW - ago_s) * 1000)}\n')
    assert reading == Absence(OCCUPANCY, TOO_OLD, labels=labelled(gpu_uuid="GPU-a"))


@pytest.mark.spec("SRC-2")
def test_a_dated_figure_keeps_its_date() -> None:
    (reading,) = read(f'{FIELD}{{UUID="GPU-a"}} 0.5 {int((NOW - 20) * 1000)}\n')
    assert isinstance(reading, Sample)
    assert reading.time == pytest.approx(NOW - 20)


@pytest.mark.spec("SRC-2")
def test_one_without_a_date_is_of_the_moment_it_was_asked_for() -> None:
    clock = ManualClock()
    with exporter(page(PAGE), asked=lambda: clock.advance(1.5)) as url:
        _, reading = DcgmProbe(url, lambda _: ("GPU-a",), clock).read([job()])[job().identity]
    assert clock.now().timestamp() == NOW + 1.5, "the exporter took its time"
    assert isinstance(reading, Sample)
    assert reading.time == NOW


@pytest.mark.spec("SRC-2")
@pytest.mark.parametrize(("uuids", "reason"), [((), NO_GPUS), (None, NOT_KNOWN_YET)])
def test_without_cards_nobody_is_asked(uuids: tuple[str, ...] | None, reason: str) -> None:
    probe = DcgmProbe("http://127.0.0.1:1/metrics", lambda _: uuids, ManualClock())
    assert probe.read([job()])[job().identity] == [
        Absence(each, reason) for each in (ERRORS, OCCUPANCY)
    ]


@pytest.mark.spec("OPS-9", "SRC-2", "SRC-4")
def test_a_node_without_an_exporter_says_so() -> None:
    with pytest.raises(ProbeFailed, match=NOT_SET):
        DcgmProbe("", lambda _: ("GPU-a",), ManualClock()).read([job()])


@pytest.mark.spec("SRC-2")
@pytest.mark.parametrize(
    "answer",
    [b"", b"nonsense", page("", "500 Internal Server Error"), page("", "302 Found")],
)
def test_an_exporter_that_fails_is_an_absence_with_its_words(answer: bytes) -> None:
    with exporter(answer) as url, pytest.raises(ProbeFailed) as failed:
        DcgmProbe(url, lambda _: ("GPU-a",), ManualClock()).read([job()])
    assert failed.value.last_error


@pytest.mark.spec("SRC-2")
def test_nobody_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    probe = DcgmProbe(f"http://127.0.0.1:{port}", lambda _: ("GPU-a",), ManualClock())
    with pytest.raises(ProbeFailed):
        probe.read([job()])


@pytest.mark.spec("SRC-2")
@pytest.mark.parametrize("said", [b"", b"HTTP/1.0 200 OK\r\n", page(PAGE)])
def test_one_that_hangs_half_way_is_given_up_and_what_came_is_not_used(said: bytes) -> None:
    with exporter(said, hangs=True) as url:
        probe = DcgmProbe(url, lambda _: ("GPU-a",), ManualClock(), timeout_s=0.1)
        with pytest.raises(ProbeFailed):
            probe.read([job()])


@pytest.mark.spec("SRC-2")
def test_an_endless_page_is_not_read() -> None:
    with exporter(page(b"#" * (MOST_BYTES + 10))) as url:
        probe = DcgmProbe(url, lambda _: ("GPU-a",), ManualClock(), timeout_s=30)
        with pytest.raises(ProbeFailed, match="can't be read") as caught:
            probe.read([job()])
    assert "too large" in caught.value.last_error


@pytest.mark.parametrize(
    "url",
    [
        "http://10.0.0.1:9400/metrics",
        "http://exporter.example/metrics",
        "https://127.0.0.1:9400",
        "file:///etc/passwd",
        "http://127.0.0.1:port",
        "http://[::1",
        "127.0.0.1:9400",
    ],
)
def test_only_an_exporter_on_this_node_is_asked(url: str) -> None:
    with pytest.raises(BadExporter):
        address_of(url)


def test_addresses_that_are_here() -> None:
    assert address_of("http://localhost") == ("localhost", 9400, "/metrics")
    assert address_of("http://[::1]:9401/m") == ("::1", 9401, "/m")


TEXTS = st.text(st.sampled_from(f'{FIELD}{{}}"=\\,UI GPU-a 0.1e+NaN\n\t#'), max_size=200)


@pytest.mark.spec("SRC-2")
@given(text=TEXTS | st.text(max_size=300))
@example(f'{FIELD}{{UUID="GPU-a"}} 1e308')
@example(f'{FIELD}{{UUID="GPU-a\\"}}"}} 0.5')
@example(f"{FIELD}{{" + 'a="' * 500)
def test_whatever_a_page_holds_only_whole_lines_are_read(text: str) -> None:
    for told in parse_values(text, FIELDS):
        assert told.field == FIELD
        assert told.uuid
        assert not is_blank(told.value)


@pytest.mark.spec("SRC-2")
@pytest.mark.parametrize(
    "labels",
    [
        'gpu=0,UUID="GPU-a"',
        'é="UUID=",b="GPU-a"',
        '1="UUID=",GPU_I_ID="GPU-a"',
        'UUID="GPU-a"gpu="0"',
        'UUID="GPU-a",UUID="GPU-b"',
        'UUID="GPU-a" and more',
        ',UUID="GPU-a"',
        'gpu="0",,UUID="GPU-a"',
    ],
)
def test_a_line_with_broken_labels_names_no_card(labels: str) -> None:
    assert parse_values(f"{FIELD}{{{labels}}} 0.5", FIELDS) == []


@pytest.mark.parametrize(
    "labels", ['gpu="0",UUID="GPU-a",', ' gpu = "0" , UUID="GPU-a"\t', 'UUID="GPU-a"']
)
def test_labels_are_read_as_prometheus_lets_them_be_written(labels: str) -> None:
    assert [each.uuid for each in parse_values(f"{FIELD}{{{labels}}} 0.5", FIELDS)] == ["GPU-a"]


@pytest.mark.spec("SRC-2")
@given(
    first=st.sampled_from([0x7FFF_FFF0, 0x7FFF_FFFF_FFFF_FFF0, 2**47]),
    reason=st.integers(0, 15),
    scale=st.sampled_from([1, 100, 1024, 2**20]),
    kind=st.sampled_from([int, float]),
)
def test_blanks_are_known_scaled_or_not(
    first: int, reason: int, scale: int, kind: type[int | float]
) -> None:
    assert is_blank(kind((first + reason) * scale))


@given(value=st.floats(0, 2e9) | st.integers(0, 2 * 10**9))
def test_what_a_card_can_have_is_no_blank(value: float) -> None:
    assert not is_blank(value)
