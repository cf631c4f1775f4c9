"""People of `just soak scale`: each has a client of the SDK, and connections of its own.

Six of ten follow output, two ask for the use of a job again and again, two watch. What each has
had is compared with what nodes wrote: every line has a number, and every measurement its moment.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from joserfc import jwt
from joserfc.jwk import OctKey

from bench.figures import say
from bench.soak.scale_plan import Plan, PlannedJob
from lattice.base.errors import LatticeError
from lattice.client import Client, Settings
from lattice.client.tokens import FixedToken
from lattice.features.logs.model import LogBlock, LogGap, LogNote, NoteKind
from lattice.features.watch.model import (
    NodeWord,
    WatchMeasured,
    WatchNode,
    WatchNote,
    WatchNoteKind,
)
from tests.fakes.server import AUDIENCE, SECRET

FOLLOWERS, ASKERS = 6, 2
"""Of ten; the others watch."""
LARGE = 50
"""One of so many looks at the largest job, unless it asks `top`: each asks all of its nodes."""
_TOKEN_S = 4 * 3600
_TRY_AGAIN_S = 2.0
_REPORT_S = 1.0


@dataclass(frozen=True, slots=True)
class Pace:
    """How often each `top` asks, and how often nodes measure for those who watch."""

    top_s: float
    measure_s: int


def token_of(number: int, user: str) -> str:
    """Every viewer is a person of its own for the limits, with the rights of the job's owner."""
    now = int(time.time())
    claims = {"sub": f"viewer-{number}", "aud": AUDIENCE, "exp": now + _TOKEN_S, "iat": now}
    claims["preferred_username"] = user
    return jwt.encode({"alg": "HS256"}, claims, OctKey.import_key(SECRET))


class Viewer:
    """One person; `problems` count what ended a stream or refused a question."""

    kind = ""

    def __init__(self, number: int, job: PlannedJob, urls: tuple[str, ...], ca: str) -> None:
        at = number % len(urls)
        self.number = number
        self.job = job
        self.began = False
        self.problems: Counter[str] = Counter()
        self._settings = Settings((*urls[at:], *urls[:at]), ca=ca)
        self._tokens = FixedToken(token_of(number, job.owner))

    async def run(self) -> None:
        async with Client(self._settings, tokens=self._tokens, environment={}) as client:
            while True:
                try:
                    await self.look(client)
                except LatticeError as error:
                    self.problems[f"{type(error).__name__}: {error.message[:80]}"] += 1
                await asyncio.sleep(_TRY_AGAIN_S)

    async def look(self, client: Client) -> None:
        raise NotImplementedError


class Follower(Viewer):
    """`logs --follow`: by node the first and the newest line that came."""

    kind = "logs"

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.first: dict[str, int] = {}
        self.newest: dict[str, int] = {}
        self.lines = self.twice = self.missing = self.gaps = self.reconnected = 0

    async def look(self, client: Client) -> None:
        async with client.logs(str(self.job.id), follow=True) as records:
            async for record in records:
                self.began = True
                if isinstance(record, LogBlock) and not record.unfinished:
                    for line in record.text.splitlines():
                        self.take(line)
                elif isinstance(record, LogGap):
                    self.gaps += 1
                elif isinstance(record, LogNote) and not record.node:
                    self.reconnected += record.kind is NoteKind.RECONNECTED

    def take(self, line: str) -> None:
        node, _, number, *_ = line.split(" ")
        count, before = int(number), self.newest.get(node)
        self.lines += 1
        if before is None:
            self.first[node] = count
        elif count <= before:
            self.twice += 1
            return
        else:
            self.missing += count - before - 1
        self.newest[node] = count


class Asker(Viewer):
    """`top`: one question after the other."""

    kind = "top"

    def __init__(self, every_s: float, *given: Any) -> None:
        super().__init__(*given)
        self._every_s = every_s
        self.answers = self.absent = 0

    async def look(self, client: Client) -> None:
        while True:
            begun = time.monotonic()
            answer = await client.metrics(str(self.job.id))
            self.began = True
            self.answers += 1
            self.absent += answer.rows[0].age_s is None
            await asyncio.sleep(max(0.0, begun + self._every_s - time.monotonic()))


class Watcher(Viewer):
    """`watch`: a moment of a node that is passed over, and nothing was noted, is lost silently."""

    kind = "watch"

    def __init__(self, measure_s: int, *given: Any) -> None:
        super().__init__(*given)
        self._measure_s = measure_s
        self.events = self.twice = self.lost = self.noted = 0
        self._newest: dict[str, int] = {}
        self._excused: dict[str, int] = {}

    async def look(self, client: Client) -> None:
        async with client.watch(str(self.job.id)) as records:
            async for record in records:
                self.began = True
                if isinstance(record, WatchMeasured):
                    for each in record.nodes:
                        self._take(each.node, round(each.time.timestamp() / self._measure_s))
                elif isinstance(record, WatchNode) and record.word is not NodeWord.OVER:
                    self._excuse(record.node)
                elif isinstance(record, WatchNote) and record.kind is not WatchNoteKind.ALIVE:
                    for node in self.job.nodes:
                        self._excuse(node)

    def _excuse(self, node: str) -> None:
        """It was noted that the stream of this node was not whole."""
        self._excused[node] = 1

    def _take(self, node: str, moment: int) -> None:
        before = self._newest.get(node)
        excused = self._excused.pop(node, 0)
        self.events += 1
        if before is not None and moment <= before:
            self.twice += 1
            return
        if before is not None:
            missed = moment - before - 1
            self.noted += missed if excused else 0
            self.lost += 0 if excused else missed
        self._newest[node] = moment


class Audience:
    """The viewers of one process, who come in steps."""

    def __init__(
        self, plan: Plan, pace: Pace, urls: tuple[str, ...], ca: str, share: range
    ) -> None:
        self.each = [_viewer(plan, pace, number, urls, ca) for number in share]
        self._tasks: list[asyncio.Task[None]] = []

    async def come(self, count: int, a_second: float) -> None:
        """Until so many of this process are there."""
        while len(self._tasks) < min(count, len(self.each)):
            viewer = self.each[len(self._tasks)]
            self._tasks.append(asyncio.create_task(viewer.run()))
            await asyncio.sleep(1 / a_second)

    def report(self) -> dict[str, Any]:
        problems: Counter[str] = Counter()
        for each in self.each:
            problems.update(each.problems)
        return {
            "began": sum(each.began for each in self.each),
            "lines": self._sum(Follower, lambda each: each.lines),
            "events": self._sum(Watcher, lambda each: each.events),
            "answers": self._sum(Asker, lambda each: each.answers),
            "absent": self._sum(Asker, lambda each: each.absent),
            "twice": self._sum(Follower, lambda each: each.twice),
            "missing": self._sum(Follower, lambda each: each.missing),
            "gaps": self._sum(Follower, lambda each: each.gaps),
            "reconnected": self._sum(Follower, lambda each: each.reconnected),
            "events_lost": self._sum(Watcher, lambda each: each.lost),
            "events_noted": self._sum(Watcher, lambda each: each.noted),
            "events_twice": self._sum(Watcher, lambda each: each.twice),
            "problems": dict(problems.most_common(6)),
        }

    def _sum(self, kind: type[Any], of: Callable[[Any], int]) -> int:
        return sum(of(each) for each in self.each if isinstance(each, kind))

    def behind(self, lines: dict[str, int]) -> int:
        """Lines that nodes wrote last and that did not come, of all who follow them."""
        return sum(
            max(0, lines[node] - each.newest.get(node, 0))
            for each in self.each
            if isinstance(each, Follower) and each.began
            for node in each.job.nodes
            if node in each.newest or lines[node]
        )


def _viewer(plan: Plan, pace: Pace, number: int, urls: tuple[str, ...], ca: str) -> Viewer:
    others = plan.jobs[1:]
    job = others[number * 7 % len(others)]
    kind = number // len(urls) * 7 % 10
    if FOLLOWERS <= kind < FOLLOWERS + ASKERS:
        return Asker(pace.top_s, number, job, urls, ca)
    if number % LARGE == 0:
        job = plan.jobs[0]
    if kind < FOLLOWERS:
        return Follower(number, job, urls, ca)
    return Watcher(pace.measure_s, number, job, urls, ca)


async def viewers(plan: Plan, pace: Pace, urls: tuple[str, ...], ca: str, share: range) -> None:
    """The input has how many are to be there, and at the end the file of what nodes wrote."""
    audience = Audience(plan, pace, urls, ca, share)
    behind = -1

    async def report() -> None:
        while True:
            say(audience.report() | {"behind": behind})
            await asyncio.sleep(_REPORT_S)

    running: list[asyncio.Task[Any]] = [asyncio.create_task(report())]
    loop = asyncio.get_running_loop()
    while line := (await loop.run_in_executor(None, sys.stdin.readline)).strip():
        asked = json.loads(line)
        if "wrote" in asked:
            behind = audience.behind(json.loads(Path(asked["wrote"]).read_text()))
        else:
            coming: Coroutine[Any, Any, None] = audience.come(asked["count"], asked["a_second"])
            running.append(asyncio.create_task(coming))
    for task in running:
        task.cancel()
