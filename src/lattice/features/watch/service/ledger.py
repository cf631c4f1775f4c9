"""What a reader has received about alerts and nodes, and so what is new. No I/O, no clock.

an alert changes          it is sent once per phase: firing, cleared or unknown.
a snapshot arrives        its alerts are compared with those sent; a missing one has cleared,
                          unless the node's judge was restarted and can't know yet.
a node stops answering    it is stale and its alerts are unknown; after 20 s it is lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace

from lattice.domain.alert import Alert, Phase, Severity
from lattice.domain.node_snapshot import SETTLED_S, NodeSnapshot, NodeUnreachable
from lattice.features.watch.model import (
    NODE_LOST,
    NodeWord,
    WatchAlert,
    WatchNode,
    WatchNote,
    WatchNoteKind,
    WatchRecord,
    moment,
)
from lattice.features.watch.service.cursor import Known

LOST_AFTER_S = 20.0
"""A node that is unreachable for this long is lost; a restarting agent is back sooner."""
FIRST_WORD_S = 5.0
"""The delay for a node that was never heard: a job begins before its agent sees it."""
_MOST_WAITING = 20_000
_LOST_REMEDY = (
    "Nothing is known of the job there. If the node is gone Slurm will say so; if it comes back, "
    "this clears by itself."
)


@dataclass(slots=True)
class _Stands:
    """An alert that was sent and has not cleared."""

    phase: Phase
    since: float
    severity: Severity = Severity.WARNING
    unit: str = ""
    bound: float | None = None
    text: str = ""


@dataclass(slots=True)
class _Silent:
    since: float
    from_: float
    """When it was reported unreachable; its last message may be older."""
    reason: str
    reported: bool = False
    lost: bool = False


class AlertLedger:
    """The ledger of one reader. News goes in; `pending` holds the records to send."""

    def __init__(self, known: Iterable[Known] = ()) -> None:
        """`known` was sent before, on another connection."""
        self.pending: deque[WatchAlert | WatchNode] = deque()
        self.changed = True
        """True if the cursor must be rewritten."""
        self.left_out = 0
        self._stands: dict[tuple[str, str, str], _Stands] = {}
        self._of_node: dict[str, set[tuple[str, str, str]]] = {}
        self._silent: dict[str, _Silent] = {}
        self._seen: set[str] = set()
        self._settled: dict[str, float] = {}
        """From when on a missing alert counts as cleared."""
        self._judged: dict[str, float] = {}
        """Alerts that began after this time are known to the node's judge at once."""
        for node, rule, subject, phase, since in known:
            self._put((node, rule, subject), _Stands(Phase(phase), since))

    @property
    def known(self) -> tuple[Known, ...]:
        """The alerts for a cursor."""
        return tuple(
            (*key, each.phase.value, round(each.since, 3)) for key, each in self._stands.items()
        )

    @property
    def stale(self) -> frozenset[str]:
        return frozenset(self._silent)

    def measured(self, snapshot: NodeSnapshot, now: float) -> None:
        """Take a snapshot of a node."""
        node = snapshot.node
        self._seen.add(node)
        self.back(node, None, now)
        if snapshot.judged_since is not None:
            self._judged[node] = snapshot.judged_since
            self._settled[node] = snapshot.judged_since + SETTLED_S
        elif snapshot.before is None or node not in self._settled:
            self._settled[node] = now + (SETTLED_S if snapshot.before is None else 0.0)
        if not snapshot.firing and node not in self._of_node:
            return
        for alert in snapshot.firing:
            self.alert(node, alert)
        standing = {(node, each.rule.value, each.subject) for each in snapshot.firing}
        for key in self._of_node.get(node, set()) - standing:
            if self._is_known(node, self._stands[key].since, now):
                self._clear(key, snapshot.now.time, "It does not stand any more.")
            else:
                self._doubt(key, now, "The node looks anew.")

    def alert(self, node: str, alert: Alert) -> None:
        """Take a change of an alert."""
        key = (node, alert.rule.value, alert.subject)
        stands = self._stands.get(key)
        self._seen.add(node)
        if alert.phase is Phase.CLEARED:
            if stands is not None and not self._is_doubted(node, stands, alert.time):
                self._drop(key)
                self._queue_alert(node, alert, stands.since)
            return
        if stands is not None and stands.phase is alert.phase:
            # An alert from a cursor has no text yet.
            stands.text, stands.severity = alert.text, alert.severity
            return
        since = min(stands.since, alert.since) if stands is not None else alert.since
        self._put(key, self._queue_alert(node, alert, since))

    def silent(self, silence: NodeUnreachable, now: float) -> None:
        """Record that a node has stopped answering."""
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
        if node in self._seen or silence.since is not None:
            self._queue_stale(node, silent, now)

    def back(self, node: str, gone_s: float | None, now: float) -> None:
        """Record that it answers again."""
        silent = self._silent.pop(node, None)
        key = (node, NODE_LOST, "")
        if silent is None and key not in self._stands:
            return
        since = silent.since if silent is not None else self._stands[key].since
        if silent is not None and not silent.reported:
            return
        away_s = gone_s if gone_s is not None else max(now - since, 0.0)
        self._queue(
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
        """Record that the job is done there: all its alerts clear."""
        self._silent.pop(node, None)
        self._settled.pop(node, None)
        self._judged.pop(node, None)
        self._queue(WatchNode(node=node, word=NodeWord.OVER, time=moment(now)))
        for key in sorted(self._of_node.get(node, ())):
            self._clear(key, now, "The job is over on this node.")

    def advance(self, now: float) -> None:
        """Advance time: nodes that are unreachable for long are reported lost, once."""
        for node, silent in self._silent.items():
            if not silent.reported and now - silent.from_ >= FIRST_WORD_S:
                self._queue_stale(node, silent, now)
            if not silent.lost and now - silent.from_ >= LOST_AFTER_S:
                silent.lost = True
                self._lose(node, silent, now)

    def forget(self) -> None:
        """Reset for another attempt, which has its own judges."""
        self._stands.clear()
        self._of_node.clear()
        self._silent.clear()
        self._settled.clear()
        self._judged.clear()
        self._seen.clear()
        self.changed = True

    def drained(self, now: float) -> list[WatchRecord]:
        """Return the records to send, marked as one moment."""
        records: list[WatchRecord] = [replace(each, follows=True) for each in self.pending]
        if self.pending:
            records[-1] = self.pending[-1]
        self.pending.clear()
        if self.left_out:
            text = f"{self.left_out} events were left out: the reader was too slow for them."
            records.append(WatchNote(kind=WatchNoteKind.LEFT_OUT, time=moment(now), words=text))
            self.left_out = 0
        return records

    def _is_doubted(self, node: str, stands: _Stands, time: float) -> bool:
        """Return True if the report comes from a restarted judge that can't know."""
        return stands.phase is Phase.UNKNOWN and not self._is_known(node, stands.since, time)

    def _is_known(self, node: str, since: float, now: float) -> bool:
        """Return True if the node's judge knows the state of an alert that began then."""
        began = self._judged.get(node)
        return now >= self._settled.get(node, 0.0) or (began is not None and since >= began)

    def _queue_stale(self, node: str, silent: _Silent, now: float) -> None:
        if silent.reported:
            return
        silent.reported = True
        self._queue(
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
            text=f"Node {node} is lost{reason}; how the job is there is not known.",
        )
        self._put((node, NODE_LOST, ""), stands)
        self._queue(self._record((node, NODE_LOST, ""), stands, Phase.FIRING, now, _LOST_REMEDY))

    def _doubt(self, key: tuple[str, str, str], now: float, why: str) -> None:
        stands = self._stands[key]
        if stands.phase is not Phase.FIRING or key[1] == NODE_LOST:
            return
        stands.phase = Phase.UNKNOWN
        self.changed = True
        text = f"{why} It was: {stands.text}" if stands.text else why
        self._queue(self._record(key, stands, Phase.UNKNOWN, now, text=text))

    def _clear(self, key: tuple[str, str, str], time: float, text: str) -> None:
        stands = self._stands[key]
        self._drop(key)
        self._queue(self._record(key, stands, Phase.CLEARED, time, text=text))

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

    def _queue_alert(self, node: str, alert: Alert, since: float) -> _Stands:
        key = (node, alert.rule.value, alert.subject)
        stands = _Stands(alert.phase, since, alert.severity, alert.unit, alert.bound, alert.text)
        record = self._record(key, stands, alert.phase, alert.time, alert.remedy)
        self._queue(replace(record, value=alert.value))
        return stands

    @staticmethod
    def _record(
        key: tuple[str, str, str],
        stands: _Stands,
        phase: Phase,
        time: float,
        remedy: str = "",
        text: str = "",
    ) -> WatchAlert:
        node, rule, subject = key
        return WatchAlert(
            node=node,
            rule=rule,
            subject=subject,
            phase=phase,
            severity=stands.severity,
            bound=stands.bound,
            unit=stands.unit,
            since=moment(stands.since),
            time=moment(time),
            lasted_s=max(time - stands.since, 0.0) if phase is Phase.CLEARED else None,
            words=text or stands.text,
            remedy=remedy,
        )

    def _queue(self, record: WatchAlert | WatchNode) -> None:
        if len(self.pending) >= _MOST_WAITING:
            self.left_out += 1
            return
        self.pending.append(record)
