"""What reading Slurm costs: an idle poll against a full one, and what 50 000 jobs would cost.

    python -m bench.poll                 brings up a lab of its own, with 300 held jobs
    python -m bench.poll --lab NAME      uses a lab that is up, and adds the jobs to it
    python -m bench.poll --address unix:/run/slurmrestd.sock --cluster NAME
                                         only reads; the daemons' own part is not seen then

One JSON line a figure. `value` is the median, `low` and `high` hold the middle half of the rounds,
`bare` is what it is held against and `ratio` is value to bare. Rounds are interleaved, so that a
busy moment of the machine falls on both.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from bench.figures import Figure, against
from lab.laboratory import Lab
from lattice.adapters.slurm.answer import read_answer
from lattice.adapters.slurm.dialect import Dialects
from lattice.adapters.slurm.http_client import RestReply
from lattice.adapters.slurm.poller import ControllerClock, Polled
from lattice.adapters.slurm.rest import SlurmRest
from lattice.adapters.slurm.schema.decoder import known_schemas
from lattice.adapters.slurm.tenancy import Placing
from lattice.base.clock import SystemClock
from lattice.domain.accounts import AccountTree
from lattice.domain.allocation import Allocation
from lattice.domain.vcluster import Vclusters

JOBS = 300
MANY = 50_000
ROUNDS = 21
DECODE_ROUNDS = 5
IDLE_GOAL = 1 / 20
_SETTLE_S = 4.0


class Slurm:
    """A slurmrestd to measure: one connection, one description, one clock, as a server has."""

    def __init__(self, rest: SlurmRest, cluster: str) -> None:
        self.rest = rest
        self.placing = Placing(cluster, AccountTree(), Vclusters())
        self._clock = SystemClock()
        self.dialects = Dialects(rest, known_schemas(), self._clock)
        self._controller_clock = ControllerClock(rest, self._clock)

    def jobs(self) -> Polled[Allocation]:
        """A list that has not been read yet: its first poll reads and decodes everything."""
        return Polled(
            self.rest,
            self.dialects,
            self._clock,
            self._controller_clock,
            name="jobs",
            decode=lambda schema, raw: schema.job(raw, self.placing),
        )


@dataclass(frozen=True, slots=True)
class Cost:
    """What one poll took: by the wall, and of the processors in every process that has a part."""

    wall_s: float
    processor_s: float


class Meter:
    """Reads what this process and the given ones have used. The wall is as busy as the machine."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._pids = pids

    async def poll(self, jobs: Polled[Allocation]) -> tuple[bool, Cost]:
        wall, used = time.perf_counter(), self._used()
        changed = await jobs.poll()
        return changed, Cost(time.perf_counter() - wall, self._used() - used)

    def _used(self) -> float:
        # The kernel's clock of another process, threads that ended included; see
        # clock_getcpuclockid(3), which Python has for threads only.
        others = (time.clock_gettime((~pid << 3) | 2) for pid in self._pids)
        return time.process_time() + sum(others)


async def idle_against_full(slurm: Slurm, meter: Meter) -> tuple[list[Figure], float]:
    """Interleaved: a first reading of the whole list, and a poll that finds nothing changed."""
    await slurm.jobs().poll()
    await asyncio.sleep(_SETTLE_S)
    idle: list[Cost] = []
    full: list[Cost] = []
    while len(idle) < ROUNDS:
        jobs = slurm.jobs()
        _, first = await meter.poll(jobs)
        changed, second = await meter.poll(jobs)
        if not changed:
            full.append(first)
            idle.append(second)
    name = f"idle poll of Slurm with {len(jobs.records)} jobs, against a full one"
    used = [c.processor_s for c in idle], [c.processor_s for c in full]
    wall = [c.wall_s for c in idle], [c.wall_s for c in full]
    figures = [
        against(f"{name}: processor time of all processes", "s", *used, IDLE_GOAL),
        against(f"{name}: by the wall", "s", *wall, None),
    ]
    return figures, statistics.median(wall[1])


def many_of(record: bytes) -> bytes:
    """An answer with 50 000 jobs: one real record, each time with another id."""
    value = json.loads(record.decode("utf-8", "replace"), strict=False)
    records = (json.dumps(value | {"job_id": number}, indent=2) for number in range(1, MANY + 1))
    return ('{"errors": [], "jobs": [' + ",".join(records) + "]}").encode()


async def what_many_cost(slurm: Slurm, full_s: float, count: int) -> list[Figure]:
    """The server's part on 50 000 jobs, and with the real poll what a full one would take."""
    path = (await slurm.dialects.live()).path("jobs")
    answer = await slurm.rest.get(path, timeout_s=30)
    body = many_of(bytes(read_answer(answer.body, "jobs").records[0]))
    description = await slurm.rest.get("/openapi/v3", timeout_s=30)
    first, again, bare = await many_times(description.body, path, body, slurm.placing.cluster)
    made = f"reading {MANY} jobs made by replicating one real record"
    first_figure = against(f"{made}: the first time, against json.loads", "s", first, bare, None)
    total = (full_s / count) * MANY + first_figure.value
    return [
        first_figure,
        against(
            f"{made}: with nothing changed in them, against json.loads", "s", again, bare, None
        ),
        Figure(name=f"size of an answer with {MANY} such jobs", value=len(body) / 1e6, unit="MB"),
        Figure(
            name=f"full poll of {MANY} jobs, Slurm's part extrapolated from {count} jobs",
            value=total,
            unit="s",
        ),
        Figure(
            name="the interval to which polls would stretch then, at a tenth of the time",
            value=10 * total,
            unit="s",
        ),
    ]


class Replay:
    """slurmrestd's answers from memory, the whole list at every poll."""

    reconnects = 0

    def __init__(self, answers: Mapping[str, bytes]) -> None:
        self._answers = answers

    async def get(self, target: str, _headers: Mapping[str, str], _limit_bytes: int) -> RestReply:
        return RestReply(200, self._answers.get(target.partition("?")[0], b"{}"))

    async def aclose(self) -> None:
        pass


async def many_times(
    description: bytes, path: str, body: bytes, cluster: str
) -> tuple[list[float], list[float], list[float]]:
    """Seconds for a first reading, for one with nothing new in it, and for json.loads."""
    first: list[float] = []
    again: list[float] = []
    bare: list[float] = []
    replay = Replay({"/openapi/v3": description, path: body})
    slurm = Slurm(SlurmRest("http://replay", exchange=replay), cluster)
    meter = Meter(())
    await slurm.dialects.live()
    for _ in range(DECODE_ROUNDS):
        jobs = slurm.jobs()
        first.append((await meter.poll(jobs))[1].wall_s)
        again.append((await meter.poll(jobs))[1].wall_s)
        assert len(jobs.records) == MANY
        assert jobs.counts.records_reused_total == MANY
        bare.append(seconds(lambda: json.loads(body)))
    await slurm.rest.aclose()
    return first, again, bare


def seconds(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


async def measure(address: str, cluster: str, pids: Sequence[int] = ()) -> bool:
    rest = SlurmRest(address)
    try:
        slurm = Slurm(rest, cluster)
        figures, full_s = await idle_against_full(slurm, Meter(pids))
        jobs = slurm.jobs()
        await jobs.poll()
        figures += await what_many_cost(slurm, full_s, len(jobs.records))
    finally:
        await rest.aclose()
    for figure in figures:
        figure.print()
    return all(figure.ok is not False for figure in figures)


def fill(lab: Lab) -> None:
    """Held jobs, one record each: tasks of an array would be one record together."""
    lab.run_as(
        "alice",
        [
            *("bash", "-c"),
            f"seq {JOBS} | xargs -P 4 -I% sbatch -Q -H -J bench-% --mem=10M --wrap 'sleep 60'",
        ],
        timeout_s=300,
    )


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    options.add_argument("--lab", help="a lab that is up")
    options.add_argument("--address", help="slurmrestd's address; nothing is submitted then")
    options.add_argument("--cluster", default="lab", help="Slurm's ClusterName")
    asked = options.parse_args()
    if asked.address:
        return 0 if asyncio.run(measure(asked.address, asked.cluster)) else 1
    with ExitStack() as stack:
        if asked.lab:
            lab = Lab.attach(asked.lab)
            stack.callback(lab.jobs.cancel_all)
        else:
            lab = Lab("bench", parts={"slurm"})
            stack.callback(lab.down, purge=True)
            lab.up()
        fill(lab)
        pids = [lab.slurm.restd.pid, lab.slurm.ctld.pid]
        address = f"unix:{lab.slurm.files.rest_socket}"
        met = asyncio.run(measure(address, asked.cluster, pids))
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
