"""The page of a DCGM exporter, in Prometheus' text format.

- Any bytes give samples; no exception escapes.
- Every number stands in the text as plain digits, not as `NaN`, `Inf`, `1_0` or `٣`.
- Each line is told on its own: lines before and after it change nothing.
- Whatever is told, `prometheus_client` reads from the same line. What that reads and is not told
  is one of `RULES`: Lattice takes what an exporter writes, and leaves out what it never would.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from prometheus_client.parser import text_string_to_metric_families

from lattice.probes.dcgm import DcgmText, parse_values
from lattice.probes.dcgm_blanks import is_blank

FIELDS = {
    "DCGM_FI_DEV_GPU_UTIL": None,
    "DCGM_FI_PROF_SM_OCCUPANCY": None,
    "DCGM_FI_DEV_FB_USED": None,
}
TOKENS = (
    b"DCGM_FI_DEV_GPU_UTIL",
    b"DCGM_FI_DEV_GPU_UTIL{",
    b'UUID="GPU-1"',
    b'uuid="GPU-2"',
    b',GPU_I_ID="1"',
    b'="UUID="',
    b'modelName="a b"',
    b'\\"',
    b"\\\\",
    b"} 1",
    b"} 0.5 1700000000000\n",
    b"NaN",
    b"+Inf",
    b"1_0",
    b"0x1",
    b"1e308",
    b"1e999",
    b"\xd9\xa3",
    b"2147483632",
    b"# HELP x y\n",
    b"# TYPE x gauge\n",
    b" # {} 1",
    b"\r",
    b"\x0b",
    b",,",
)
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?", re.ASCII)
_TIME = re.compile(r"[0-9]{1,15}", re.ASCII)
_LONGEST_LINE = 4096
_LONGEST_NUMBER = 40
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')


def seeds() -> Iterable[bytes]:
    yield b'DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-a",modelName="NVIDIA A100 {x}"} 97\n'
    yield b'DCGM_FI_DEV_FB_USED{gpu="0",UUID="GPU-a",GPU_I_ID="3"} 12.5 1700000000000\n'
    yield b'DCGM_FI_PROF_SM_OCCUPANCY{gpu="0",uuid="GPU-b",Hostname="n\\"1"} 0.25\n'
    yield b'DCGM_FI_DEV_GPU_UTIL{ gpu = "0" , UUID="GPU-a",} +1e2\r\n'
    yield b'DCGM_FI_DEV_GPU_UTIL{UUID="GPU-a"} 1_0\nDCGM_FI_DEV_GPU_UTIL{UUID="GPU-b"} \xd9\xa3\n'
    yield b'DCGM_FI_DEV_FB_USED{UUID="GPU-a"} 2147483632\nDCGM_FI_DEV_FB_USED 5\n'
    yield b'# HELP DCGM_FI_DEV_GPU_UTIL x\nDCGM_FI_DEV_GPU_UTIL{UUID="GPU-a"} NaN\n'


def try_one(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    told = parse_values(text, FIELDS)
    by_line = [parse_values(line, FIELDS) for line in text.split("\n")]
    assert told == [each for line in by_line for each in line]
    for line, found in zip(text.split("\n"), by_line, strict=True):
        assert len(found) <= 1
        for each in found:
            _stands_in(line, each)
        if line.partition("{")[0].strip() in FIELDS:
            _same_as_prometheus(line, found[0] if found else None)


def _stands_in(line: str, told: DcgmText) -> None:
    assert told.field in FIELDS
    assert told.uuid
    assert told.uuid in line
    assert math.isfinite(told.value)
    words = re.split(r"[ \t\r]+", line[line.rindex("}") + 1 :].strip(" \t\r"))
    assert _NUMBER.fullmatch(words[0]), "a number that is not written as one"
    assert told.value == float(words[0])
    if told.time is not None:
        assert _TIME.fullmatch(words[1])
        assert told.time == int(words[1]) / 1000


def _same_as_prometheus(line: str, told: DcgmText | None) -> None:
    theirs = _theirs(line)
    if theirs is None:
        assert told is None, "Prometheus' own reader refuses this line"
        return
    labels, value, time = theirs
    if told is None:
        rules = (rule(line, labels, value) for rule in RULES.values())
        assert any(rules), "a line that Prometheus' own reader takes"
        return
    assert told.value == value
    assert told.time == time
    uuid = labels.get("UUID") or labels.get("uuid", "")
    # No UUID has a backslash: escapes in it are left as they stand.
    assert "\\" in told.uuid or told.uuid == uuid, "another card"
    assert told.instance == bool(labels.get("GPU_I_ID"))


def _theirs(line: str) -> tuple[dict[str, str], float, float | None] | None:
    try:
        families = list(text_string_to_metric_families(line.rstrip("\r")))
    except (ValueError, IndexError, OverflowError):
        return None
    samples = [sample for family in families for sample in family.samples]
    if len(samples) != 1:
        return None
    (sample,) = samples
    try:
        value = float(sample.value)
        time = None if sample.timestamp is None else float(sample.timestamp)
    except OverflowError:
        return None
    return sample.labels, value, time


def _shape(line: str) -> tuple[str, str, list[str]]:
    """The name, the labels with empty values, and the words behind them."""
    bare = _QUOTED.sub('""', line.rstrip("\r"))
    name, _, rest = bare.partition("{")
    labels, _, values = rest.partition("}")
    return name, labels, re.split(r"[ \t]+", values)


def _no_card(line: str, labels: dict[str, str], value: float) -> bool:
    return not (labels.get("UUID") or labels.get("uuid"))


def _blank(line: str, labels: dict[str, str], value: float) -> bool:
    return is_blank(value)


def _too_long(line: str, labels: dict[str, str], value: float) -> bool:
    return len(line) > _LONGEST_LINE or any(len(each) > _LONGEST_NUMBER for each in _shape(line)[2])


def _blanks_around_the_name(line: str, labels: dict[str, str], value: float) -> bool:
    return _shape(line)[0] not in FIELDS


def _odd_labels(line: str, labels: dict[str, str], value: float) -> bool:
    """Quoted names, leading and double commas, blanks other than space and tab."""
    written = re.sub(r"[ \t]", "", _shape(line)[1])
    return not re.fullmatch(r'(?:[a-zA-Z_][a-zA-Z0-9_]*=""(?:,|\Z))*', written, re.ASCII)


def _no_blank_before_the_value(line: str, labels: dict[str, str], value: float) -> bool:
    return _shape(line)[2][0] != ""


def _no_plain_number(line: str, labels: dict[str, str], value: float) -> bool:
    words = _shape(line)[2]
    return len(words) < 2 or not _NUMBER.fullmatch(words[1])


def _odd_time(line: str, labels: dict[str, str], value: float) -> bool:
    """Signs, points, and more than one word behind the value."""
    words = [each for each in _shape(line)[2][2:] if each]
    return len(words) > 1 or not all(_TIME.fullmatch(each) for each in words)


RULES = {
    "a line that names no card": _no_card,
    "a value by which NVIDIA says none": _blank,
    "a line or a number beyond its bound": _too_long,
    "blanks around the name": _blanks_around_the_name,
    "labels that no exporter writes": _odd_labels,
    "no blank before the value": _no_blank_before_the_value,
    "a value that is no plain number": _no_plain_number,
    "a time that is no count of milliseconds": _odd_time,
}
"""By reason, the lines that are left out although Prometheus' own reader takes them."""
