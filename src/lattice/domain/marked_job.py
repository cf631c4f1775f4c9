"""Finds the job of a submission whose answer was lost, by the mark in the job's comment."""

from __future__ import annotations

from datetime import datetime

from lattice.base.errors import Unavailable
from lattice.domain.labels import read_comment
from lattice.domain.scheduler import PastQuestion, Scheduler, Scope


async def marked_job(scheduler: Scheduler, user: str, mark: str, since: datetime) -> int:
    """The id of this user's job with the mark, 0 if there is none.

    Raises `Unavailable` if Slurm or its accounting does not answer.
    """
    scope = Scope(users=frozenset({user}))
    reading = await scheduler.fresh(users={user})
    for each in reading.cluster.visible(scope):
        if read_comment(each.comment).key == mark:
            return each.array.job_id if each.array else each.job_id
    if not reading.source.ok:
        raise Unavailable("Whether this was submitted can't be told now: Slurm does not answer.")
    for each in await scheduler.past(PastQuestion(scope=scope, since=since)):
        if each.user == user and read_comment(each.comment).key == mark:
            return each.array.job_id if each.array else each.job_id
    return 0
