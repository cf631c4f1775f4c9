"""What a reader was told of alerts and nodes, and so what is news. No I/O, no clock.

a node judges            each change of an alert is told once: firing, cleared or unknown
a node is looked at      what it says stands is compared with what was told: what is missing
                         there has cleared, unless the node looks anew and can't know yet
a node stops answering   it is stale, what stood on it is unknown; if that lasts, it is lost
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime

from lattice.domain.alert import Alert, Phase, Severity
from lattice.domain.nodelook import SETTLED_S, NodeSight, NodeSilence
from lattice.features.watch.model import (
    NODE_LOST,
    NodeWord,
    NoteKind,
    WatchAlert,
    WatchNode,
    WatchNote,
    WatchRecord,
)
from lattice.features.watch.service.cursor import Known
from lattice.features.watch.service.moments import moment

LOST_AFTER_S = 20.0
"""A node that is said to be silent for so long is lost: an agent that restarts is back before."""
FIRST_WORD_S = 5.0
"""A node that was never heard is given so long: a job begins before its agent knows of it."""
_MOST_WAITING = 20_000
_LOST_REMEDY = (
    "Nothing is known of the job there. If the node is gone Slurm will say so; if it comes back, "
    "this clears by itself."
)


@dataclass(slots=True)
class _Stands:
    """An alert that was told and has not cleared."""

    phase: Phase
    since: float
    severity: Severity = Severity.WARNING
    unit: str = ""
    bound: float | None = None
    words: str = ""


@dataclass(slots=True)
class _Silent:
    since: float
    from_: float
    """When it was said to be silent; what it told last may be older."""
    reason: str
    told: bool = False
    lost: bool = False


class Ledger:
    """One reader's. News goes in, records come out of `told`."""

    def __init__(self, known: Iterable[Known] = ()) -> None:
        """`known` is what the reader was told before, on another connection."""
        self.told: deque[WatchAlert | WatchNode] = deque()
        self.changed = True
        """True if a cursor has to be written anew."""
        self.left_out = 0
        self._stands: dict[tuple[str, str, str], _Stands] = {}
        self._of_node: dict[str, set[tuple[str, str, str]]] = {}
        self._silent: dict[str, _Silent] = {}
        self._heard: set[str] = set()
        self._settled: dict[str, float] = {}
        """From when on what a node does not say stands does not stand."""
        self._judged: dict[str, float] = {}
        """What began later its judge has seen begin, so that its word on it holds at once."""
        for node, rule, subject, phase, since in known:
            self._put((node, rule, subject), _Stands(Phase(phase), since))

    @property
    def known(self) -> tuple[Known, ...]:
        """For a cursor."""
        return tuple(
            (*key, each.phase.value, round(each.since, 3)) for key, each in self._stands.items()
        )

    @property
    def stale(self) -> frozenset[str]:
        return frozenset(self._silent)

    def measured(self, sight: NodeSight, now: float) -> None:
        """A node has told how it stands."""
        node = sight.node
        self._heard.add(node)
        self.back(node, None, now)
        if sight.judged_since is not None:
            self._judged[node] = sight.judged_since
            self._settled[node] = sight.judged_since + SETTLED_S
        elif sight.before is None or node not in self._settled:
            self._settled[node] = now + (SETTLED_S if sight.before is None else 0.0)
        if not sight.firing and node not in self._of_node:
            return
        for alert in sight.firing:
            self.alert(node, alert)
        standing = {(node, each.rule.value, each.subject) for each in sight.firing}
        for key in self._of_node.get(node, set()) - standing:
            if self._is_known(node, self._stands[key].since, now):
                self._clear(key, sight.now.time, "It does not stand any more.")
            else:
                self._doubt(key, now, "The node looks anew.")

    def alert(self, node: str, alert: Alert) -> None:
        """A node has judged."""
        key = (node, alert.rule.value, alert.subject)
        stands = self._stands.get(key)
        self._heard.add(node)
        if alert.phase is Phase.CLEARED:
            if stands is not None and not self._is_doubted(node, stands, alert.time):
                self._drop(key)
                self._tell_alert(node, alert, stands.since)
            return
        if stands is not None and stands.phase is alert.phase:
            # Known from a cursor it has no words yet.
            stands.words, stands.severity = alert.words, alert.severity
            return
        since = min(stands.since, alert.since) if stands is not None else alert.since
        self._put(
            key,
            _Stands(alert.phase, since, alert.severity, alert.unit, alert.bound, alert.words),
        )
        self._tell_alert(node, alert, since)

    def silent(self, silence: NodeSilence, now: float) -> None:
        """A node has stopped answering."""
        node = silence.node
        if node in self._silent:
            return
        since = silence.since if silence.since is not None else now
        known_lost = (node, NODE_LOST, "") in self._stands
        silent = _Silent(since, now, silence.reason, known_lost, known_lost)
        self._silent[node] = silent
        self._settled.pop(node, None)
        self._judged.pop(node, None)
        for key in sorted(self._of_node.get(node, ())):
            self._doubt(key, now, "The node does not answer.")
        if node in self._heard or silence.since is not None:
            self._tell_stale(node, silent, now)

    def back(self, node: str, gone_s: float | None, now: float) -> None:
        """It answers again."""
        silent = self._silent.pop(node, None)
        key = (node, NODE_LOST, "")
        if silent is None and key not in self._stands:
            return
        since = silent.since if silent is not None else self._stands[key].since
        if silent is not None and not silent.told:
            return
        away_s = gone_s if gone_s is not None else max(now - since, 0.0)
        self._tell(
            WatchNode(
                node=node,
                word=NodeWord.BACK,
                time=moment(now),
                since=moment(since),
                seconds=away_s,
            )
        )
        if key in self._stands:
            self._clear(key, now, f"Node {node} answers again.")

    def over(self, node: str, now: float) -> None:
        """The job is done there: nothing can stand any more."""
        self._silent.pop(node, None)
        self._settled.pop(node, None)
        self._judged.pop(node, None)
        self._tell(WatchNode(node=node, word=NodeWord.OVER, time=moment(now)))
        for key in sorted(self._of_node.get(node, ())):
            self._clear(key, now, "The job is over on this node.")

    def look(self, now: float) -> None:
        """Time has passed: who is silent for long is lost, and said to be so once."""
        for node, silent in self._silent.items():
            if not silent.told and now - silent.from_ >= FIRST_WORD_S:
                self._tell_stale(node, silent, now)
            if not silent.lost and now - silent.from_ >= LOST_AFTER_S:
                silent.lost = True
                self._lose(node, silent, now)

    def forget(self) -> None:
        """Another attempt begins, with judges of its own."""
        self._stands.clear()
        self._of_node.clear()
        self._silent.clear()
        self._settled.clear()
        self._judged.clear()
        self._heard.clear()
        self.changed = True

    def drained(self, now: float) -> list[WatchRecord]:
        """What is to be told: all of it is of one moment."""
        told: list[WatchRecord] = [replace(each, follows=True) for each in self.told]
        if self.told:
            told[-1] = self.told[-1]
        self.told.clear()
        if self.left_out:
            words = f"{self.left_out} events were left out: the reader was too slow for them."
            told.append(WatchNote(kind=NoteKind.LEFT_OUT, time=moment(now), words=words))
            self.left_out = 0
        return told

    def _is_doubted(self, node: str, stands: _Stands, time: float) -> bool:
        """True if who says that it has cleared can't know: its judge has begun anew."""
        return stands.phase is Phase.UNKNOWN and not self._is_known(node, stands.since, time)

    def _is_known(self, node: str, since: float, now: float) -> bool:
        """Whether the node's judge knows how something stands that began then."""
        began = self._judged.get(node)
        return now >= self._settled.get(node, 0.0) or (began is not None and since >= began)

    def _tell_stale(self, node: str, silent: _Silent, now: float) -> None:
        if silent.told:
            return
        silent.told = True
        self._tell(
            WatchNode(
                node=node,
                word=NodeWord.STALE,
                time=moment(now),
                since=moment(silent.since),
                reason=silent.reason,
            )
        )

    def _lose(self, node: str, silent: _Silent, now: float) -> None:
        reason = f" ({silent.reason.removesuffix('.')})" if silent.reason else ""
        stands = _Stands(
            Phase.FIRING,
            silent.since,
            Severity.CRITICAL,
            words=f"Node {node} is lost{reason}; how the job is there is not known.",
        )
        self._put((node, NODE_LOST, ""), stands)
        self._tell(self._record((node, NODE_LOST, ""), stands, Phase.FIRING, now, _LOST_REMEDY))

    def _doubt(self, key: tuple[str, str, str], now: float, why: str) -> None:
        stands = self._stands[key]
        if stands.phase is not Phase.FIRING or key[1] == NODE_LOST:
            return
        stands.phase = Phase.UNKNOWN
        self.changed = True
        words = f"{why} It was: {stands.words}" if stands.words else why
        self._tell(self._record(key, stands, Phase.UNKNOWN, now, words=words))

    def _clear(self, key: tuple[str, str, str], time: float, words: str) -> None:
        stands = self._stands[key]
        self._drop(key)
        self._tell(self._record(key, stands, Phase.CLEARED, time, words=words))

    def _put(self, key: tuple[str, str, str], stands: _Stands) -> None:
        self._stands[key] = stands
        self._of_node.setdefault(key[0], set()).add(key)
        self.changed = True

    def _drop(self, key: tuple[str, str, str]) -> None:
        del self._stands[key]
        left = self._of_node[key[0]]
        left.discard(key)
        if not left:
            del self._of_node[key[0]]
        self.changed = True

    def _tell_alert(self, node: str, alert: Alert, since: float) -> None:
        cleared = alert.phase is Phase.CLEARED
        self._tell(
            WatchAlert(
                node=node,
                rule=alert.rule.value,
                subject=alert.subject,
                phase=alert.phase,
                severity=alert.severity,
                value=alert.value,
                bound=alert.bound,
                unit=alert.unit,
                since=moment(since),
                time=moment(alert.time),
                lasted_s=max(alert.time - since, 0.0) if cleared else None,
                words=alert.words,
                remedy=alert.remedy,
            )
        )

    @staticmethod
    def _record(
        key: tuple[str, str, str],
        stands: _Stands,
        phase: Phase,
        time: float,
        remedy: str = "",
        words: str = "",
    ) -> WatchAlert:
        node, rule, subject = key
        when: datetime = moment(time)
        return WatchAlert(
            node=node,
            rule=rule,
            subject=subject,
            phase=phase,
            severity=stands.severity,
            bound=stands.bound,
            unit=stands.unit,
            since=moment(stands.since),
            time=when,
            lasted_s=max(time - stands.since, 0.0) if phase is Phase.CLEARED else None,
            words=words or stands.words,
            remedy=remedy,
        )

    def _tell(self, record: WatchAlert | WatchNode) -> None:
        if len(self.told) >= _MOST_WAITING:
            self.left_out += 1
            return
        self.told.append(record)
