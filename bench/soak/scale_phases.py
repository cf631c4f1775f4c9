"""The phases of `just soak scale`, and what may not be lost in them."""

from __future__ import annotations

import argparse
import json
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from bench.measuring import Part, RunningStore
from bench.soak.scale_measures import Measures
from bench.soak.scale_nodes import NUMBERED, Rates
from bench.soak.scale_plan import Plan
from bench.soak.scale_replicas import Replica
from lattice.domain.metric import PREFIX

AUDIENCES = 3
STEPS = (0.25, 0.5, 1.0)
"""Of the agents, then of the viewers."""
_LINKED_WITHIN_S, _CAUGHT_UP_WITHIN_S = 900.0, 120.0
_COME_SLACK_S = 180.0
_COUNTED = (
    ("lines missing between two that came", "missing", "lines"),
    ("lines missing at the end", "behind", "lines"),
    ("lines that came twice", "twice", "lines"),
    ("gaps shown to log viewers", "gaps", "gaps"),
    ("moments of watchers lost and not noted", "events_lost", "moments"),
)


class Broke(Exception):
    """Links were lost where none should be: the machine can't hold more. The text has the phase."""


def shares(plan: Plan) -> list[range]:
    """Which nodes each crowd has."""
    edges = [0, *(round(plan.nodes * step) for step in STEPS)]
    return [range(*each) for each in pairwise(edges)]


@dataclass
class Soak:
    """All parts while they run."""

    asked: argparse.Namespace
    plan: Plan
    folder: Path
    store: RunningStore
    replicas: Sequence[Replica]
    crowds: Sequence[Part]
    audiences: Sequence[Part]
    measures: Measures
    linked: int = 0
    """So many links there must be."""

    def run(self) -> None:
        """Phase after phase, until one breaks. What was written is compared in any case."""
        try:
            self._rise()
        except Broke as broke:
            self.measures.judge(f"broke first: {broke}", 0, "phases", False, 1)
        self._end()
        self.measures.model()

    def _rise(self) -> None:
        self._phase("nothing is linked", self.asked.phase_s / 2)
        self._link()
        self._phase("all linked, idle", self.asked.phase_s)
        self._rates(sample_s=self.asked.sample_s)
        time.sleep(self.asked.sample_s)
        self._phase("samples", self.asked.phase_s)
        self._rates(
            sample_s=self.asked.sample_s,
            line_s=self.asked.line_s,
            large_line_s=self.asked.large_line_s,
        )
        for step in STEPS:
            count = round(self.asked.viewers * step)
            self._come(count)
            self._phase(f"{count} viewers", self.asked.phase_s, count)
        if not self.asked.no_kill:
            self._kill()

    def _phase(self, name: str, seconds: float, viewers: int = 0) -> None:
        if not self.measures.phase(name, seconds, self.linked, viewers):
            raise Broke(name)

    def _link(self) -> None:
        begun = time.monotonic()
        for crowd, share in zip(self.crowds, shares(self.plan), strict=True):
            crowd.tell("go")
            crowd.until(partial(_has_linked, len(share)), _LINKED_WITHIN_S)
            self.linked = share.stop
            if self.linked < self.plan.nodes:
                self._phase(f"{self.linked} linked, idle", self.asked.phase_s / 2)
        self.measures.add("all linked from nothing after", time.monotonic() - begun, "s")

    def _rates(self, **rates: float) -> None:
        for crowd in self.crowds:
            crowd.tell(json.dumps(asdict(Rates(**rates))))

    def _come(self, count: int) -> None:
        begun = time.monotonic()
        pace = self.asked.viewers_a_second / AUDIENCES
        for number, audience in enumerate(self.audiences):
            share = len(range(number, count, AUDIENCES))
            audience.tell(json.dumps({"count": share, "a_second": pace}))
        deadline = begun + count / self.asked.viewers_a_second + _COME_SLACK_S
        while (came := self._all("began")) < count:
            if time.monotonic() > deadline:
                problems = [each.last.get("problems") for each in self.audiences]
                self.measures.note(f"{count} viewers: only {came} had an answer; {problems}")
                break
            time.sleep(1)
        name = f"{count} viewers: all had a first answer after"
        self.measures.add(name, time.monotonic() - begun, "s")

    def _kill(self) -> None:
        killed, begun, before = self.replicas[0], time.monotonic(), self.measures.use()
        lost = before.metrics[killed.name].get("lattice_links_held", 0)
        reconnected = self._all("reconnected")
        killed.kill()
        self.measures.note(f"{killed.name} is killed: it had {lost:.0f} links")
        left = self.replicas[1:]
        name, held = "links of the killed replica, all of them linked again", 0.0
        while time.monotonic() < begun + _LINKED_WITHIN_S:
            held = sum(each.metrics().get("lattice_links_held", 0) for each in left)
            if held >= self.plan.nodes:
                self.measures.add(f"{name} after", time.monotonic() - begun, "s")
                break
            time.sleep(0.2)
        self.measures.judge(name, held, "links", held >= self.plan.nodes, self.plan.nodes)
        count = self.asked.viewers
        self._phase(f"{count} viewers, one replica killed", self.asked.phase_s * 2, count)
        again = self._all("reconnected") - reconnected
        self.measures.add("log viewers that went on elsewhere", again, "viewers")

    def _end(self) -> None:
        """Nothing more is written; what is under way arrives; then both sides are compared."""
        self._rates()
        time.sleep(max(10.0, self.asked.sample_s / 2))
        wrote: dict[str, int] = {}
        batches: dict[str, list[int]] = {}
        for number, crowd in enumerate(self.crowds):
            file = self.folder / f"wrote-{number}"
            crowd.tell(json.dumps({"end": str(file)}))
            _until(file.exists, 60)
            time.sleep(2)
            found = json.loads(file.read_text())
            wrote |= found["lines"]
            batches |= found["batches"]
        all_of_them = self.folder / "wrote"
        all_of_them.write_text(json.dumps(wrote))
        deadline = time.monotonic() + _CAUGHT_UP_WITHIN_S
        while time.monotonic() < deadline:
            for audience in self.audiences:
                audience.tell(json.dumps({"wrote": str(all_of_them)}))
            time.sleep(5)
            if not self._all("behind"):
                break
        self._compare(wrote, batches)

    def _compare(self, wrote: Mapping[str, int], batches: Mapping[str, Sequence[int]]) -> None:
        add, judge = self.measures.add, self.measures.judge
        add("lines written", sum(wrote.values()), "lines")
        add("lines that came to viewers", self._all("lines"), "lines")
        for name, key, unit in _COUNTED:
            judge(name, self._all(key), unit, self._all(key) == 0, 0)
        add("moments that came to watchers", self._all("events"), "moments")
        add("moments of watchers missing, and noted", self._all("events_noted"), "moments")
        add("moments that came to watchers twice", self._all("events_twice"), "moments")
        add("answers of top", self._all("answers"), "answers")
        add("answers of top without a current sample", self._all("absent"), "answers")
        refused = self._of_crowds("refused")
        add("samples acknowledged", self._of_crowds("samples"), "samples")
        judge("samples refused", refused, "samples", refused == 0, 0)
        failed = self._of_crowds("tries_failed")
        add("sends of samples that failed and were repeated", failed, "sends")
        absent = _absent(self.store.url, batches)
        name = "acknowledged batches that the store does not have"
        judge(name, absent, "batches", absent == 0, 0)
        add("batches compared with the store", sum(map(len, batches.values())), "batches")
        for each in (*self.crowds, *self.audiences):
            self.measures.note(json.dumps(each.last))

    def _all(self, key: str) -> int:
        return sum(each.last.get(key, 0) for each in self.audiences)

    def _of_crowds(self, key: str) -> int:
        return sum(each.last.get(key, 0) for each in self.crowds)


def _has_linked(count: int, state: Mapping[str, Any]) -> bool:
    return bool(state.get("linked", 0) >= count)


def _until(holds: Callable[[], bool], within_s: float) -> None:
    deadline = time.monotonic() + within_s
    while not holds():
        if time.monotonic() > deadline:
            raise SystemExit(f"not within {within_s:g} s")
        time.sleep(0.2)


def _absent(store: str, batches: Mapping[str, Sequence[int]]) -> int:
    """Acknowledged batches of which the store lacks the numbered series."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    opener.open(f"{store}/internal/force_flush", timeout=60).close()
    asked = urllib.parse.urlencode({"match[]": PREFIX + NUMBERED})
    stored: dict[str, set[int]] = {}
    with opener.open(f"{store}/api/v1/export?{asked}", timeout=300) as answer:
        for line in answer:
            series = json.loads(line)
            stored.setdefault(series["metric"]["node"], set()).update(map(int, series["values"]))
    return sum(len(set(numbers) - stored.get(node, set())) for node, numbers in batches.items())
