"""Records the gatekeeper's decisions: a log line for each refusal, a count for every call."""

from __future__ import annotations

import structlog

from lattice.foundation.own_metrics import OwnMetrics


class LoggedJournal:
    """The reason of a refusal is for the operator only, never for the caller."""

    def __init__(self, log: structlog.stdlib.BoundLogger, figures: OwnMetrics) -> None:
        self._log = log
        self._figures = figures

    def admitted(self, rpc: str) -> None:
        self._figures.calls.labels(rpc, "admitted").inc()

    def refused(self, rpc: str, sub: str, reason: str) -> None:
        self._figures.calls.labels(rpc, "refused").inc()
        self._log.warning("access refused", rpc=rpc, sub=sub, reason=reason)

    def acted(self, act: str, target: str, sub: str, detail: str) -> None:
        """Record an act, or an attempt at one, on the cluster."""
        self._log.info("act", act=act, target=target, sub=sub, detail=detail)

    def defect(self, rpc: str, error: BaseException) -> None:
        self._figures.calls.labels(rpc, "defect").inc()
        self._log.error("defect", rpc=rpc, exc_info=error)
