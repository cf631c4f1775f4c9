"""The error for an attempt without known output, with the reason of each node."""

from __future__ import annotations

from collections.abc import Container, Mapping

from lattice.base.errors import DataUnavailable
from lattice.features.logs.service.live_feeds import NodeFeed
from lattice.features.logs.service.log_keys import AttemptName

_MOST_REASONS = 3
_NO_FILE = "no output file of it was found there"
_NOT_YET = "it has not arrived yet"
_NOT_KNOWN = "why is not known"


class Absent:
    """The reasons of one attempt's nodes."""

    def __init__(self, name: AttemptName, feeds: Mapping[str, NodeFeed], *, settled: bool) -> None:
        """`settled`: it ended so long ago that no output can arrive any more."""
        self._name = name
        self._feeds = feeds
        self._settled = settled

    def error(self) -> DataUnavailable:
        """The error with each reason once, and its nodes."""
        nodes: dict[str, list[str]] = {}
        for node, feed in self._feeds.items():
            nodes.setdefault(self._reason(feed), []).append(node)
        reasons = [f"{_named(each)}: {why}" for why, each in nodes.items()]
        if len(reasons) > _MOST_REASONS:
            left = len(reasons) - _MOST_REASONS
            reasons = [*reasons[:_MOST_REASONS], f"{left} more reasons on other nodes"]
        attempt = self._name.attempt.number
        which = f" (attempt {attempt})" if attempt > 1 else ""
        what = f"Nothing is known of what allocation {self._name.allocation.id}{which} wrote"
        return DataUnavailable(
            f"{what}. {'; '.join(reasons)}." if reasons else f"{what}: it ran on no node.",
            hint=self._hint(nodes),
        )

    def _reason(self, feed: NodeFeed) -> str:
        troubles = [each.trouble for each in feed.streams.values() if each.trouble]
        if feed.trouble:
            return f"the node does not answer ({feed.trouble.rstrip('.')})"
        if not feed.told.is_set():
            return "the node has not answered yet"
        if feed.no_stream or troubles:
            return (feed.no_stream or troubles[0]).rstrip(".")
        if feed.over and not feed.streams:
            return _NO_FILE
        return _NOT_KNOWN if self._settled else _NOT_YET

    def _hint(self, reasons: Mapping[str, object]) -> str:
        if not self._settled and set(reasons) != {_NO_FILE}:
            return "It ended a moment ago and may still arrive: try again in a minute."
        return "The job's own files are not touched; docs/operate/logs.md explains each reason."


def reasons_of(feeds: Mapping[str, NodeFeed], known: Container[str]) -> dict[str, str]:
    """Why output of nodes is missing or incomplete; `known` are nodes with stored streams."""
    found = {}
    for node, feed in feeds.items():
        troubles = [each.trouble for each in feed.streams.values() if each.trouble]
        if troubles and not feed.over:
            found[node] = f"the rest is not read yet ({troubles[0]})"
        elif feed.no_stream and not feed.streams and node not in known:
            found[node] = f"nothing of its output is known ({feed.no_stream})"
    return found


def _named(nodes: list[str]) -> str:
    """`n1`, or `n1 and 3 more`."""
    return nodes[0] if len(nodes) == 1 else f"{nodes[0]} and {len(nodes) - 1} more"
