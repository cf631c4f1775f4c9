"""Why something is missing: asked of the nodes themselves, of few of them, and remembered.

The metric store only knows that it has nothing. Whether a node is gone, its agent restarts or its
driver is broken is what the agents know, or what their silence tells.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from lattice.base.clock import Clock
from lattice.base.moment import age
from lattice.domain.attempts import JobAttempt
from lattice.domain.measured import SHOWN, Shown
from lattice.domain.metric import Absence
from lattice.domain.nodelook import NodeLooks, NodeSilence

MOST_ASKED = 16
_WITHIN_S = 1.0
_KEPT_S, _SILENCE_KEPT_S = 60.0, 4.0
_MOST_KEPT = 4096
_Key = tuple[str, int, str]


@dataclass(frozen=True, slots=True)
class NodeWord:
    """What is known of one node: that it is silent, or what it can't measure."""

    silence: str = ""
    absences: Mapping[Shown, Absence] = field(default_factory=dict)


class Reasons:
    """Asks nodes, at most so many at once, each once a minute."""

    def __init__(self, looks: NodeLooks | None, clock: Clock) -> None:
        self._looks = looks
        self._clock = clock
        self._kept: dict[_Key, tuple[float, NodeWord]] = {}

    async def of(self, job: JobAttempt, nodes: Iterable[str]) -> dict[str, NodeWord]:
        """The word on each of the first few of these nodes."""
        wanted = list(nodes)[:MOST_ASKED]
        found = {node: word for node in wanted if (word := self._remembered(job, node))}
        unknown = [node for node in wanted if node not in found]
        if unknown and self._looks is not None:
            sights, silences = await self._looks.look(job, only=unknown, within_s=_WITHIN_S)
            for sight in sights:
                absences = {
                    metric: told
                    for metric, showing in SHOWN.items()
                    if (told := sight.now.absence(showing.series)) is not None
                }
                found[sight.node] = NodeWord(absences=absences)
            for silence in silences:
                found[silence.node] = NodeWord(silence_words(silence, self._clock))
            for node in unknown:
                if node in found:
                    self._keep(job, node, found[node])
        return found

    def _remembered(self, job: JobAttempt, node: str) -> NodeWord | None:
        until, word = self._kept.get(_key(job, node), (0.0, None))
        return word if until > self._clock.monotonic() else None

    def _keep(self, job: JobAttempt, node: str, word: NodeWord) -> None:
        if len(self._kept) >= _MOST_KEPT:
            self._kept.clear()
        # What a node says of a job that has just begun is soon another thing.
        started = job.attempt.started
        young = started is None or (self._clock.now() - started).total_seconds() < _KEPT_S
        kept_s = _SILENCE_KEPT_S if word.silence or young else _KEPT_S
        self._kept[_key(job, node)] = (self._clock.monotonic() + kept_s, word)


def silence_words(silence: NodeSilence, clock: Clock) -> str:
    """Why a node tells nothing, and for how long."""
    if silence.since is None:
        return silence.reason
    passed_s = clock.now().timestamp() - silence.since
    return f"{silence.reason}, for {age(passed_s)}" if passed_s >= 1 else silence.reason


def _key(job: JobAttempt, node: str) -> _Key:
    return job.allocation.ref, job.attempt.number, node
