"""Writes down what the gatekeeper decides: a log line for each refusal, a count for every call."""

from __future__ import annotations

import structlog

from lattice.server.figures import Figures


class LoggedJournal:
    """The reason stays here: it tells the operator which check failed, never the caller."""

    def __init__(self, log: structlog.stdlib.BoundLogger, figures: Figures) -> None:
        self._log = log
        self._figures = figures

    def admitted(self, rpc: str) -> None:
        self._figures.calls.labels(rpc, "admitted").inc()

    def refused(self, rpc: str, sub: str, reason: str) -> None:
        self._figures.calls.labels(rpc, "refused").inc()
        self._log.warning("access refused", rpc=rpc, sub=sub, reason=reason)

    def acted(self, act: str, target: str, sub: str, detail: str) -> None:
        """What somebody did, or tried to do, to the cluster."""
        self._log.info("act", act=act, target=target, sub=sub, detail=detail)

    def defect(self, rpc: str, error: BaseException) -> None:
        self._figures.calls.labels(rpc, "defect").inc()
        self._log.error("defect", rpc=rpc, exc_info=error)
