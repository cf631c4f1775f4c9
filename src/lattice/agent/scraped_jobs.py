"""Whose figures a scraper on this node may have: nobody's who does sensitive work.

A scraper writes to a store that many people read. Whether a job is sensitive an agent learns with
the grant for its output. A node that ever had sensitive work shows a job once a server has called
it ordinary. Other nodes show every job that no server has called sensitive.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from lattice.domain.measured import JobSnapshot
from lattice.features.logs.node.followed import FollowedFile

_log = logging.getLogger(__name__)


class ScrapedJobs:
    """Chooses them, for each page anew."""

    def __init__(self, marker: Path, followed: Callable[[], Iterable[FollowedFile]]) -> None:
        """`marker` is a file that is there once the node has had sensitive work."""
        self._marker = marker
        self._followed = followed
        self._had_sensitive_work = marker.exists()

    def note_sensitive_work(self) -> None:
        """A server has called a job of this node sensitive."""
        if self._had_sensitive_work:
            return
        self._had_sensitive_work = True
        try:
            self._marker.touch()
        except OSError as error:
            _log.warning("%s is not written: %s", self._marker, error.strerror)

    def of(self, snapshots: Iterable[JobSnapshot]) -> Iterator[JobSnapshot]:
        """Those that a scraper may have."""
        sealed, ordinary = set[int](), set[int]()
        for each in self._followed():
            if each.seal is not None:
                sealed.add(each.identity.job_id)
            elif each.admitted:
                ordinary.add(each.identity.job_id)
        for snapshot in snapshots:
            job = snapshot.identity.job_id
            if job not in sealed and (job in ordinary or not self._had_sensitive_work):
                yield snapshot
