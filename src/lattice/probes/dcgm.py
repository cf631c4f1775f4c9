"""The DCGM probe: metrics that only a DCGM exporter has, if the site already runs one.

SM occupancy comes from DCGM's profiling, which blocks other profilers on the card. So Lattice never
starts it, and only reads an existing exporter, which counts errors of PCIe and NVLink, too. The
source of its values is `site_exporter`.

The format is Prometheus text. Incomplete lines, blanks and malformed numbers are skipped.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import urlsplit

from lattice.base.clock import Clock
from lattice.base.fast_start.connector import BadReply
from lattice.base.fast_start.http1 import HttpTarget
from lattice.domain.metric import Absence, MetricReading, NotMeasured, Provenance, Sample, labelled
from lattice.domain.nodejobs import JobIdentity, NodeJob
from lattice.probes.dcgm_blanks import is_blank
from lattice.probes.probe import Found, ProbeFailed, ProbeSite

NOT_SET = "no DCGM exporter is set up for this node"
NO_GPUS = "the job has no GPUs"
NOT_KNOWN_YET = "which GPUs the job has is not known yet"
NOT_REPORTED = "the DCGM exporter does not tell it of this card"
OF_INSTANCES = "MIG is on: the DCGM exporter tells it of instances that it does not name"
TOO_OLD = "what the DCGM exporter tells is old"

LINK_ERRORS = "gpu_link_errors_total"


@dataclass(frozen=True, slots=True)
class DcgmField:
    """One of DCGM's fields as a metric of ours."""

    metric: str
    labels: tuple[tuple[str, str], ...] = ()
    factor: float = 1.0


def _errors(link: str, kind: str) -> DcgmField:
    return DcgmField(LINK_ERRORS, (("kind", kind), ("link", link)))


FIELDS = {
    # DCGM reports a fraction.
    "DCGM_FI_PROF_SM_OCCUPANCY": DcgmField("gpu_sm_occupancy_percent", factor=100.0),
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": _errors("pcie", "replay"),
    "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL": _errors("nvlink", "crc_flit"),
    "DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL": _errors("nvlink", "crc_data"),
    "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL": _errors("nvlink", "replay"),
    "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL": _errors("nvlink", "recovery"),
}
"""By DCGM's name. The counters of links begin when the driver was loaded."""
MOST_BYTES = 4 * 1024 * 1024
TIMEOUT_S = 2.0
OLDEST_S = 60.0

_LINE = re.compile(
    r'(?P<name>[A-Z][A-Z0-9_]{0,99})\{(?P<labels>(?:[^"{}\n]|"(?:[^"\\\n]|\\.)*")*)\}[ \t]+'
    r"(?P<value>[0-9.eE+-]{1,40})(?:[ \t]+(?P<time_ms>[0-9]{1,15}))?[ \t]*",
    re.ASCII,
)
_LABEL = re.compile(
    r'[ \t]*([a-zA-Z_][a-zA-Z0-9_]*)[ \t]*=[ \t]*"((?:[^"\\\n]|\\.)*)"[ \t]*(?:,|\Z)', re.ASCII
)
_LONGEST_LINE = 4096


@dataclass(frozen=True, slots=True)
class DcgmText:
    """One value of one card. `time` is None if the exporter gives none."""

    field: str
    uuid: str
    value: float
    time: float | None
    instance: bool
    """Whether it is of a MIG instance; the UUID is then its card's."""


class BadExporter(ValueError):
    """The address is not one of an exporter on this node."""


class DcgmProbe:
    """Scrapes once a reading, if any job has GPUs."""

    name = "dcgm"
    metrics = frozenset(each.metric for each in FIELDS.values())

    def __init__(
        self,
        url: str,
        uuids_of: Callable[[int], tuple[str, ...] | None],
        clock: Clock,
        *,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        """`url`: empty for none. `uuids_of`: the cards of a job, None if not known yet.

        Raises `BadExporter`.
        """
        self._address = address_of(url) if url else None
        # Without an exporter it only reports that, which needs no thread.
        self.own_thread = self._address is not None
        self._uuids_of = uuids_of
        self._clock = clock
        self._timeout_s = timeout_s

    @classmethod
    def on(cls, site: ProbeSite) -> DcgmProbe:
        return cls(site.dcgm_url, site.uuids_of, site.clock)

    def read(self, jobs: Sequence[NodeJob]) -> Found:
        """The exporter's values for each job's cards. Raises `ProbeFailed`."""
        if self._address is None:
            raise ProbeFailed(NOT_SET)
        found: dict[JobIdentity, Sequence[MetricReading]] = {}
        asked: dict[JobIdentity, tuple[str, ...]] = {}
        for job in jobs:
            uuids = self._uuids_of(job.id)
            if uuids:
                asked[job.identity] = uuids
            else:
                reason = NOT_KNOWN_YET if uuids is None else NO_GPUS
                found[job.identity] = [Absence(each, reason) for each in sorted(self.metrics)]
        if asked:
            # A value without a timestamp gets the time of the request, not of the response.
            now = self._clock.now().timestamp()
            text = scraped(*self._address, timeout_s=self._timeout_s)
            values = parse_values(text, FIELDS)
            for identity, uuids in asked.items():
                found[identity] = [
                    each for uuid in uuids for each in self._of_card(uuid, values, now)
                ]
        return found

    def _of_card(
        self, uuid: str, values: Sequence[DcgmText], now: float
    ) -> Iterator[MetricReading]:
        """Every metric of a card; of one without any series, one absence."""
        exported = {FIELDS[each.field].metric for each in values if each.uuid == uuid}
        for metric in sorted(self.metrics - exported):
            yield Absence(metric, NOT_REPORTED, labels=labelled(gpu_uuid=uuid))
        for field, known in FIELDS.items():
            if known.metric in exported:
                yield self._reading(field, uuid, values, now)

    def _reading(
        self, field: str, uuid: str, values: Sequence[DcgmText], now: float
    ) -> MetricReading:
        known = FIELDS[field]
        metric, labels = known.metric, labelled(gpu_uuid=uuid, **dict(known.labels))
        of_card = [each for each in values if each.field == field and each.uuid == uuid]
        whole = [each for each in of_card if not each.instance]
        if len(whole) != 1:
            return Absence(
                metric, OF_INSTANCES if of_card and not whole else NOT_REPORTED, "", labels
            )
        time = now if whole[0].time is None else whole[0].time
        if not -OLDEST_S < now - time < OLDEST_S:
            return Absence(metric, TOO_OLD, "", labels)
        try:
            value = whole[0].value * known.factor
            return Sample(metric, value, time, Provenance.SITE_EXPORTER, labels)
        except NotMeasured as error:
            return Absence(metric, f"the DCGM exporter told what can't be: {error}", "", labels)


def address_of(url: str) -> tuple[str, int, str]:
    """Host, port and path of an exporter on this node. Raises `BadExporter`."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or 9400
    except ValueError as error:
        raise BadExporter(f"{url!r} is not an address: {error}") from None
    if parts.scheme != "http" or not _is_here(host):
        raise BadExporter(f"{url!r} is not an address on this node, as http://127.0.0.1:9400")
    return host, port, parts.path or "/metrics"


def _is_here(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def scraped(host: str, port: int, path: str, *, timeout_s: float) -> str:
    """The exporter's page; `timeout_s` is for the whole exchange. Raises `ProbeFailed`."""
    url = f"http://[{host}]:{port}{path}" if ":" in host else f"http://{host}:{port}{path}"
    try:
        answer = HttpTarget(timeout_s=timeout_s).exchange(
            "GET", url, {"Accept": "text/plain"}, most_bytes=MOST_BYTES
        )
    except TimeoutError:
        raise ProbeFailed(f"the DCGM exporter did not answer in {timeout_s:g} s") from None
    except BadReply as error:
        raise ProbeFailed("the DCGM exporter's answer can't be read", str(error)) from None
    except (OSError, ValueError) as error:
        detail = f"{type(error).__name__}: {error}"
        raise ProbeFailed("the DCGM exporter does not answer", detail) from None
    if answer.status != HTTPStatus.OK:
        raise ProbeFailed("the DCGM exporter does not answer", f"HTTP {answer.status}")
    return answer.body.decode("utf-8", "replace")


def parse_values(text: str, fields: Mapping[str, object]) -> list[DcgmText]:
    """Every line of these fields that has a number of a card."""
    found = []
    for line in text.split("\n"):
        if line.partition("{")[0] not in fields or len(line) > _LONGEST_LINE:
            continue
        value = _value(line)
        if value is not None:
            found.append(value)
    return found


def _value(line: str) -> DcgmText | None:
    match = _LINE.fullmatch(line.rstrip("\r"))
    if match is None:
        return None
    labels = _labels(match["labels"])
    try:
        value = float(match["value"])
    except ValueError:
        return None
    if labels is None:
        return None
    uuid = labels.get("UUID") or labels.get("uuid", "")
    if not uuid or is_blank(value):
        return None
    time = int(match["time_ms"]) / 1000 if match["time_ms"] else None
    return DcgmText(match["name"], uuid, value, time, bool(labels.get("GPU_I_ID")))


def _labels(text: str) -> dict[str, str] | None:
    """By name; None if any part of the text is no label, or a name occurs twice.

    Nothing is skipped: text inside the quotes of one label could look like another label.
    """
    text = text.rstrip(" \t")
    found: dict[str, str] = {}
    at = 0
    while at < len(text):
        label = _LABEL.match(text, at)
        if label is None or label[1] in found:
            return None
        found[label[1]] = label[2]
        at = label.end()
    return found
