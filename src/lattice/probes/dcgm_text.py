"""Parses the output of a DCGM exporter: only the requested fields. Pure.

The format is Prometheus text. Incomplete lines, blanks and malformed numbers are skipped.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from lattice.probes.dcgm_blanks import is_blank

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


def told_in(text: str, fields: Mapping[str, object]) -> list[DcgmText]:
    """Every line of these fields that has a number of a card."""
    found = []
    for line in text.split("\n"):
        if line.partition("{")[0] not in fields or len(line) > _LONGEST_LINE:
            continue
        told = _told(line)
        if told is not None:
            found.append(told)
    return found


def _told(line: str) -> DcgmText | None:
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
