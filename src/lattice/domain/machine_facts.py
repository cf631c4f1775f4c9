"""What a machine is, as facts with a value or a reason; and their text for people. Pure.

`lattice.base.portable.machine_facts` reads them, on a host or in a guest. A guest belongs to the
owner of a job, so its facts are untrusted: only known names count, and values are bounded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from lattice.base.sizes import size_text
from lattice.base.text import inert

NOT_REPORTED = "not reported"
_LONGEST, _LARGEST = 300, 1e18
_BYTES, _SECONDS, _COUNT, _PERCENT, _TEXT = "bytes", "s", "count", "%", "text"
FACTS: Mapping[str, tuple[str, str]] = {
    "uptime_seconds": ("up since its boot", _SECONDS),
    "boot_seconds": ("boot took", _SECONDS),
    "ssh_started_seconds": ("SSH server started after the boot", _SECONDS),
    "reached_seconds": ("first reached after the boot", _SECONDS),
    "answer_seconds": ("first report took", _SECONDS),
    "driver_seconds": ("GPU driver answered in", _SECONDS),
    "driver_version": ("GPU driver", _TEXT),
    "driver_settings": ("its settings", _TEXT),
    "gpu_count": ("GPUs", _COUNT),
    "rdma_count": ("RDMA devices", _COUNT),
    "rdma": ("RDMA ports", _TEXT),
    "network": ("network ports", _TEXT),
    "vcpus": ("processors", _COUNT),
    "cpu_model": ("processor", _TEXT),
    "cpu_governor": ("clock governor", _TEXT),
    "numa_nodes": ("NUMA nodes", _COUNT),
    "memory_bytes": ("memory", _BYTES),
    "hugepages": ("huge pages", _TEXT),
    "transparent_hugepages": ("transparent huge pages", _TEXT),
    "root_disk": ("root disk", _TEXT),
    "root_disk_bytes": ("its size", _BYTES),
    "root_disk_free_bytes": ("its free space", _BYTES),
    "container_runtimes": ("container runtimes", _TEXT),
    "machine_kind": ("kind of machine", _TEXT),
    "system": ("system", _TEXT),
    "kernel": ("kernel", _TEXT),
    "python": ("Python", _TEXT),
    "read_seconds": ("reading all this took", _SECONDS),
    "waited_percent": ("processes waited for a processor", _PERCENT),
}
"""Every fact in the order in which it is shown, with its title and its unit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFact:
    """One fact. Without number and text it has a reason."""

    name: str
    """One of `FACTS`."""
    number: float | None = None
    text: str = ""
    reason: str = ""


class BadMachineFacts(ValueError):
    """The value has not the form of facts; the message is the reason."""


def read_facts(value: Any) -> tuple[MachineFact, ...]:
    """Parse facts, in the order of `FACTS`; unknown names are skipped. Raises `BadMachineFacts`."""
    if type(value) is not dict:
        raise BadMachineFacts("no object of facts")
    return tuple(_fact(name, value[name]) for name in FACTS if name in value)


def _fact(name: str, found: Any) -> MachineFact:
    if type(found) is not dict:
        raise BadMachineFacts(f"{name} is no object")
    value, reason = found.get("value"), found.get("reason", "")
    if value is None:
        if type(reason) is not str:
            raise BadMachineFacts(f"the reason of {name} is no text")
        return MachineFact(name=name, reason=_short(reason) or NOT_REPORTED)
    if FACTS[name][1] == _TEXT:
        if type(value) is not str:
            raise BadMachineFacts(f"{name} is no text")
        return MachineFact(name=name, text=_short(value))
    if type(value) not in {int, float} or not 0 <= value <= _LARGEST:
        raise BadMachineFacts(f"{name} is no number that can be right")
    return MachineFact(name=name, number=float(value))


def _short(text: str) -> str:
    return inert(" ".join(text.split()))[:_LONGEST]


def ordered_facts(facts: Iterable[MachineFact]) -> tuple[MachineFact, ...]:
    """The facts in the order in which they are shown."""
    places = {name: at for at, name in enumerate(FACTS)}
    known = (each for each in facts if each.name in places)
    return tuple(sorted(known, key=lambda each: places[each.name]))


def fact_value(fact: MachineFact) -> str:
    """Its value as text; empty if it has none."""
    if fact.number is None:
        return fact.text
    unit = FACTS[fact.name][1]
    if unit == _BYTES:
        return size_text(fact.number)
    if unit == _SECONDS:
        return f"{fact.number:,.0f} s" if fact.number >= 100 else f"{fact.number:.3g} s"
    return f"{fact.number:.0f} %" if unit == _PERCENT else f"{fact.number:g}"


def fact_lines(facts: Iterable[MachineFact]) -> list[tuple[str, str]]:
    """Title and value of each fact; then one line with what is not known, and why."""
    lines, absent = [], []
    for each in ordered_facts(facts):
        title = FACTS[each.name][0]
        value = fact_value(each)
        if value:
            lines.append((title, value))
        else:
            absent.append(f"{title} ({each.reason})")
    return [*lines, ("not known", ", ".join(absent))] if absent else lines
