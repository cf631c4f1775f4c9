"""AMD's cards through the command `amd-smi`, where its library can't be loaded.

The command is a Python program that takes half a second of a core. So it measures once a minute at
most, and all readings in between are the same, with the time at which it ran. Which cards there are
it is asked every ten minutes, and when their number changes. A failure is not tried again earlier,
either.

The command is never asked for everything: without options it also reads, and so clears, the error
status of XGMI.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lattice.base.clock import Clock
from lattice.domain.metric import Absence, MetricReading, labelled
from lattice.probes import amdsmi
from lattice.probes.amd_card import (
    AMD_METRICS,
    NOT_READ,
    lost_amd_card,
    moved,
    throttled,
)
from lattice.probes.amd_cards import AmdCard, AmdChosen, chosen, met, with_lost
from lattice.probes.amd_json import (
    BadAmdAnswer,
    Entry,
    figures_of,
    read_cards,
    replays_of,
    table_of,
    text_of,
)
from lattice.probes.amd_program import AmdCommandFailed, find_program, run_program
from lattice.probes.amd_table import MetricsTable, ThrottleMeter
from lattice.probes.dcgm import LINK_ERRORS
from lattice.probes.gpuhealth import CardCondition
from lattice.probes.nvidia_card import (
    ECC_CORRECTED,
    ECC_UNCORRECTED,
    NOT_REPORTED,
    THROTTLED,
    reading,
)
from lattice.probes.probe import ProbeFailed

BROKEN = "the command amd-smi does not answer"
EVERY_S = 60.0
NAMES_EVERY_S = 600.0

_LIST = ("list",)
_STATIC = ("static", "--asic", "--limit", "--partition")
_XGMI = ("xgmi", "--metric")
_METRIC = (
    "metric",
    *("--usage", "--power", "--clock", "--temperature", "--ecc", "--pcie", "--mem-usage"),
)
_MORE = (("--energy", "--throttle"), ("--energy",), ())
"""Releases before 6.3 have no `--throttle`, and guests have neither."""
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    """What one run of the command gave."""

    time: float
    cards: tuple[AmdCard, ...]
    static: Mapping[int, Entry]
    metric: Mapping[int, Entry] = field(default_factory=dict)
    xgmi: Mapping[int, Entry] = field(default_factory=dict)


class AmdCommandDriver:
    """The port `CardDriver` on the command."""

    metrics = AMD_METRICS
    nothing = frozenset({amdsmi.NOT_INSTALLED, amdsmi.NO_CARDS})
    broken = BROKEN
    hangs = "amd-smi has not answered for a while"

    def __init__(
        self,
        clock: Clock,
        devices: Sequence[str] = (),
        *,
        sys: Path = Path("/sys"),
        find: Callable[[], str | None] = find_program,
        run: Callable[..., bytes] = run_program,
        every_s: float = EVERY_S,
    ) -> None:
        self._clock = clock
        self._devices = tuple(devices)
        self._pci = f"{sys}/bus/pci/devices"
        self._find = find
        self._run = run
        self._every_s = every_s
        self._more = 0
        self._next_s = self._names_until_s = 0.0
        self._listed: Mapping[int, Entry] = {}
        self._static: Mapping[int, Entry] = {}
        self._answer: _Answer | ProbeFailed = ProbeFailed(amdsmi.NOT_INSTALLED)
        self._known: dict[int, AmdCard] = {}
        self._of_jobs, self._of_node = ThrottleMeter(), ThrottleMeter()

    def scan(self) -> tuple[AmdCard, ...]:
        """All cards, lost ones included; runs the command if it is time. Raises `ProbeFailed`."""
        if self._clock.monotonic() >= self._next_s:
            try:
                self._answer = self._asked()
            except ProbeFailed as failed:
                self._answer = failed
            self._next_s = self._clock.monotonic() + self._every_s
        return self._last().cards

    def choose(self, index: int, cards: Sequence[AmdCard]) -> AmdChosen:
        """The card of one of Slurm's numbers."""
        return chosen(index, self._devices, cards)

    def read(self, device: AmdCard) -> list[MetricReading]:
        """Every metric of a card at the last run. Raises `ProbeFailed`."""
        if device.lost:
            return lost_amd_card(device.uuid, device.lost)
        answer = self._last()
        metric, static = answer.metric.get(device.handle, {}), answer.static.get(device.handle, {})
        uuid, at, table = device.uuid, answer.time, self._table(device, answer)
        found = [
            reading(name, value, 1.0, at, gpu_uuid=uuid)
            for name, value in figures_of(metric, static).items()
        ]
        replays = replays_of(metric)
        if replays is not None:
            labels = {"link": "pcie", "kind": "replay"}
            found.append(reading(LINK_ERRORS, replays, 1.0, at, gpu_uuid=uuid, **labels))
        found += [*throttled(table, self._of_jobs, uuid, at), moved(table.xgmi_bytes, uuid, at)]
        missing = sorted(self.metrics - {each.metric for each in found})
        reported = {"gpu_xid_total", *(each for each in missing if "pcie" in each)}
        return found + [
            Absence(
                each,
                NOT_READ if each in reported else NOT_REPORTED,
                labels=labelled(gpu_uuid=uuid),
            )
            for each in missing
        ]

    def condition(self, card: AmdCard) -> CardCondition:
        """The condition of a card at the last run. It does not print which links are up.

        Raises `ProbeFailed`.
        """
        if card.lost:
            return CardCondition(uuid=card.uuid, name=card.name, lost=card.lost)
        answer = self._last()
        figures = figures_of(answer.metric.get(card.handle, {}), {})
        counts = {name: int(figures[name]) for name in (ECC_CORRECTED, ECC_UNCORRECTED)
                  if name in figures}  # fmt: skip
        causes = throttled(self._table(card, answer), self._of_node, card.uuid, answer.time)
        return CardCondition(
            uuid=card.uuid,
            name=card.name,
            ecc_corrected=counts.get(ECC_CORRECTED),
            ecc_uncorrected=counts.get(ECC_UNCORRECTED),
            throttled=tuple(
                each.label("reason")
                for each in causes
                if not isinstance(each, Absence) and each.metric == THROTTLED and each.value
            ),
        )

    def stop(self) -> None:
        """Nothing runs between two readings."""

    def _last(self) -> _Answer:
        if isinstance(self._answer, ProbeFailed):
            raise self._answer
        return self._answer

    def _table(self, card: AmdCard, answer: _Answer) -> MetricsTable:
        return table_of(answer.metric.get(card.handle, {}), answer.xgmi.get(card.handle, {}))

    def _asked(self) -> _Answer:
        """Raises `ProbeFailed`."""
        program = self._find()
        if program is None:
            raise ProbeFailed(amdsmi.NOT_INSTALLED)
        now = self._clock.now().timestamp()
        try:
            metric = self._metric(program)
            if metric.keys() != self._listed.keys() or self._late():
                self._listed = read_cards(self._run(program, *_LIST))
                self._static = self._or_nothing(program, *_STATIC)
                self._names_until_s = self._clock.monotonic() + NAMES_EVERY_S
        except (AmdCommandFailed, BadAmdAnswer) as failed:
            raise ProbeFailed(BROKEN, str(failed)) from None
        if not self._listed:
            raise ProbeFailed(amdsmi.NO_CARDS)
        return _Answer(
            time=now,
            cards=self._cards(self._listed, self._static),
            static=self._static,
            metric=metric,
            xgmi=self._or_nothing(program, *_XGMI),
        )

    def _late(self) -> bool:
        return self._clock.monotonic() >= self._names_until_s

    def _metric(self, program: str) -> dict[int, Entry]:
        """With as many of the options as this release knows; it remembers which."""
        for more in range(self._more, len(_MORE)):
            try:
                found = read_cards(self._run(program, *_METRIC, *_MORE[more]))
            except BadAmdAnswer:
                if more + 1 == len(_MORE):
                    raise
            else:
                self._more = more
                return found
        raise AssertionError("the last set of options is tried")

    def _or_nothing(self, program: str, *arguments: str) -> dict[int, Entry]:
        """What not every release or node has."""
        try:
            return read_cards(self._run(program, *arguments))
        except (AmdCommandFailed, BadAmdAnswer):
            return {}

    def _cards(
        self, listed: Mapping[int, Entry], static: Mapping[int, Entry]
    ) -> tuple[AmdCard, ...]:
        for index, entry in listed.items():
            more = static.get(index, {})
            address = text_of(entry, ("bdf",)).lower()
            self._known[index] = met(
                index,
                text_of(entry, ("uuid",)),
                text_of(more, ("asic", "market_name")),
                compute=text_of(
                    more,
                    ("partition", "accelerator_partition"),
                    ("partition", "compute_partition"),
                ),
                memory=text_of(more, ("partition", "memory_partition")),
                address=address if _ADDRESS.fullmatch(address) else "",
                pci=self._pci,
            )
        return with_lost(
            [self._known[index] for index in listed],
            [card for index, card in self._known.items() if index not in listed],
        )
