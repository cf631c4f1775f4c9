from __future__ import annotations

import asyncio

from lattice.adapters.linux.nodejobs import JobListener
from lattice.domain.nodejobs import (
    JobAppeared,
    JobIdentity,
    NodeJob,
    NodeJobEnded,
    StartSign,
)


def _job(number: int) -> NodeJob:
    return NodeJob(identity=JobIdentity("boot", number, number, 1.0), started_by=StartSign.FOLDER)


async def test_it_begins_with_what_is_there() -> None:
    one, two = _job(1), _job(2)
    listener = JobListener({one.identity: one})
    listener.add([JobAppeared(two)])
    assert await listener.take(dict) == (JobAppeared(one), JobAppeared(two))
    waiting = asyncio.ensure_future(listener.take(dict))
    await asyncio.sleep(0)
    assert not waiting.done()
    listener.add([NodeJobEnded(one)])
    assert await waiting == (NodeJobEnded(one),)


async def test_a_slow_listener_hears_the_difference() -> None:
    one, two = _job(1), _job(2)
    listener = JobListener({one.identity: one}, most=10)
    await listener.take(dict)
    listener.add([NodeJobEnded(one), JobAppeared(two)])
    for number in range(3, 20):
        listener.add([JobAppeared(_job(number)), NodeJobEnded(_job(number))])
    picture = {two.identity: two}
    assert await listener.take(lambda: picture) == (NodeJobEnded(one), JobAppeared(two))
    listener.add([NodeJobEnded(two)])
    assert await listener.take(dict) == (NodeJobEnded(two),)
