"""Why values are missing: asks a few of the nodes, and caches the answers.

The metric store only has no data. The agents, or a failure to reach them, show whether a node is
gone, its agent restarts or its driver is broken.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from lattice.base.clock import Clock
from lattice.base.moment import age
from lattice.domain.attempts import JobAttempt
from lattice.domain.measured import SHOWN, Shown
from lattice.domain.metric import Absence
from lattice.domain.node_snapshot import NodeSnapshots, NodeUnreachable

MOST_ASKED = 16
_WITHIN_S = 1.0
_TTL_S, _SILENCE_TTL_S = 60.0, 4.0
_MAX_ENTRIES = 4096
_Key = tuple[str, int, str]


@dataclass(frozen=True, slots=True)
class NodeReason:
    """The state of one node: why it is unreachable, or which metrics it can't measure."""

    silence: str = ""
    absences: Mapping[Shown, Absence] = field(default_factory=dict)
    measures: bool = True
    """False if it has no number at all."""

    @property
    def only_reason(self) -> str:
        """Why it has no number at all, if one reason is behind it; else an empty text."""
        reasons = {(each.reason, each.last_error) for each in self.absences.values()}
        if self.measures or len(reasons) != 1:
            return ""
        ((reason, last_error),) = reasons
        return f"{reason} ({last_error})" if last_error else reason


class Reasons:
    """Asks at most `MOST_ASKED` nodes at once, each once a minute."""

    def __init__(self, looks: NodeSnapshots | None, clock: Clock) -> None:
        self._looks = looks
        self._clock = clock
        self._cache: dict[_Key, tuple[float, NodeReason]] = {}

    async def of(self, job: JobAttempt, nodes: Iterable[str]) -> dict[str, NodeReason]:
        """Return the reasons of the first `MOST_ASKED` of these nodes."""
        wanted = list(nodes)[:MOST_ASKED]
        found = {node: word for node in wanted if (word := self._remembered(job, node))}
        unknown = [node for node in wanted if node not in found]
        if unknown and self._looks is not None:
            snapshots, silences = await self._looks.read(job, only=unknown, within_s=_WITHIN_S)
            for snapshot in snapshots:
                absences = {
                    metric: absence
                    for metric, showing in SHOWN.items()
                    if (absence := snapshot.now.absence(showing.series)) is not None
                }
                measures = bool(snapshot.now.samples)
                found[snapshot.node] = NodeReason(absences=absences, measures=measures)
            for silence in silences:
                found[silence.node] = NodeReason(silence_text(silence, self._clock))
            for node in unknown:
                if node in found:
                    self._keep(job, node, found[node])
        return found

    def _remembered(self, job: JobAttempt, node: str) -> NodeReason | None:
        until, word = self._cache.get(_key(job, node), (0.0, None))
        return word if until > self._clock.monotonic() else None

    def _keep(self, job: JobAttempt, node: str, word: NodeReason) -> None:
        if len(self._cache) >= _MAX_ENTRIES:
            self._cache.clear()
        # The answer for a job that has just begun changes soon.
        started = job.attempt.started
        young = started is None or (self._clock.now() - started).total_seconds() < _TTL_S
        ttl_s = _SILENCE_TTL_S if word.silence or young else _TTL_S
        self._cache[_key(job, node)] = (self._clock.monotonic() + ttl_s, word)


def silence_text(silence: NodeUnreachable, clock: Clock) -> str:
    """Return why a node is unreachable, and for how long."""
    if silence.since is None:
        return silence.reason
    passed_s = clock.now().timestamp() - silence.since
    return f"{silence.reason}, for {age(passed_s)}" if passed_s >= 1 else silence.reason


def _key(job: JobAttempt, node: str) -> _Key:
    return job.allocation.ref, job.attempt.number, node
