"""How old the list of 50 000 jobs gets, and how long reading it stops a server's event loop.

    python -m bench.job_list                  brings up a lab of its own, with 50 300 jobs
    python -m bench.job_list --lab NAME       uses one that such a run left with --keep

Two sources, each read for a minute as a server does:

- slurmctld with 50 000 waiting jobs, each a record of its own, and 300 that run.
- Rows made from one real row, of which 200 a second change: a program prints them in place of
  `squeue`, and it alone is not Slurm.

One JSON line a figure. Age and pauses are by the wall: a busy machine makes them longer.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.figures import Figure, load, measured
from lab.command import LabError
from lab.laboratory import Lab
from lattice.adapters.slurm.commands import Printed, SlurmCommands
from lattice.adapters.slurm.rest import SlurmRest
from lattice.adapters.slurm.scheduler import SlurmReader, SlurmScheduler
from lattice.adapters.slurm.schema.squeue import SqueueFormat
from lattice.base.clock import SystemClock
from lattice.base.pauses import LoopPauses
from lattice.base.process import MANY, settle
from lattice.domain.vcluster import Vclusters

WAITING, RUNNING, CHANGES_A_SECOND = 50_000, 300, 200
ARRAY = 25_000
AGE_S, PAUSE_MS = 5.0, 50.0
FOR_S = 60.0
_SAMPLE_S = 0.05
_USERS = ("alice", "bob")

_PROGRAM = """#!{python}
import os, sys, time
form = dict(each.split(":0", 1) for each in os.environ["SQUEUE_FORMAT2"].split(","))
changes = int((time.time() - {begun}) * {rate})
laps, more = divmod(changes, {jobs})
rows = open("{rows}", "rb").read()
if "TimeUsed" not in form:
    at = {size} * more
    newer = rows[:at].replace(b"@@@@", b"%04d" % (laps + 1))
    rows = newer + rows[at:].replace(b"@@@@", b"%04d" % laps)
    rows = rows.replace(b"\\0", form["Name"].encode()).replace(b"\\1", form["Container"].encode())
    sys.stdout.buffer.write(rows)
"""


class MadeUpCommands(SlurmCommands):
    """The lab's commands, with rows from a program in place of `squeue`."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        super().__init__(lab.layout.slurm_conf, prefix=lab.control.room.argv([]))
        self._made_up = SlurmCommands(bin_dir=folder)

    async def job_rows(
        self,
        environment: Mapping[str, str],
        users: Iterable[str] = (),
        *,
        timeout_s: float,
        states: str = "all",
    ) -> Printed:
        return await self._made_up.job_rows(environment, users, timeout_s=timeout_s, states=states)


def commands_of(lab: Lab) -> SlurmCommands:
    return SlurmCommands(lab.layout.slurm_conf, prefix=lab.control.room.argv([]))


async def made_up(lab: Lab, folder: Path) -> MadeUpCommands:
    """As many rows as slurmctld has, from one of them: all of one length."""
    form = SqueueFormat.new(with_sluid=True)
    printed = await commands_of(lab).job_rows(form.environment, ["alice"], timeout_s=60)
    row = next(each for each in form.rows(printed) if b"|PENDING|" in each)
    plain, *free = row.split(b"\0")
    fields = plain.split(b"|")
    fields[1] = fields[2] = b"N/A"
    fields[fields.index(b"PENDING") + 6] = b"1-@@@@:00"

    def one(number: int) -> bytes:
        fields[0] = b"%09d" % number
        fields[5] = b"user%03d" % (number % 500)
        return b"|".join(fields) + b"\0" + b"\0".join(free) + b"\1\n"

    rows = [one(number) for number in range(1, WAITING + 1)]
    (folder / "rows").write_bytes(b"".join(rows))
    program = folder / "squeue"
    program.write_text(
        _PROGRAM.format(
            python=sys.executable,
            begun=time.time(),
            rate=CHANGES_A_SECOND,
            jobs=WAITING,
            rows=folder / "rows",
            size=len(rows[0]),
        )
    )
    program.chmod(0o755)
    return MadeUpCommands(lab, folder)


async def figures(lab: Lab, commands: SlurmCommands, name: str, pauses: LoopPauses) -> list[Figure]:
    rest = SlurmRest(f"unix:{lab.slurm.files.rest_socket}")
    reader = SlurmReader(account="root", commands_user="root")
    scheduler = SlurmScheduler(rest, commands, Vclusters(), SystemClock(), 1.0, reader=reader)
    polls = asyncio.create_task(scheduler.run())
    try:
        begun = time.perf_counter()
        while not scheduler.jobs.index.allocations or scheduler.jobs.last_cost_s == 0:
            await asyncio.sleep(_SAMPLE_S)
        first_s = time.perf_counter() - begun
        # The second reading is the first one that others differ from.
        await asyncio.sleep(3 * scheduler.jobs.last_cost_s)
        return [
            Figure(name=f"{name}: the first reading", value=round(first_s, 2), unit="s"),
            *await _while_it_polls(lab, scheduler, name, pauses),
        ]
    finally:
        polls.cancel()
        await asyncio.gather(polls, return_exceptions=True)
        await rest.aclose()


async def _while_it_polls(
    lab: Lab, scheduler: SlurmScheduler, name: str, pauses: LoopPauses
) -> list[Figure]:
    counts, ctld = scheduler.jobs.counts, lab.slurm.ctld.pid
    before = (counts.polls_total, counts.records_decoded_total)
    used = (time.process_time(), _of_children(), _of(ctld))
    begun, ages, longest_s = time.perf_counter(), [], 0.0
    pauses.start()
    while (passed := time.perf_counter() - begun) < FOR_S:
        await asyncio.sleep(_SAMPLE_S)
        source = scheduler.live().source
        ages.append(source.age_s or 0.0)
        longest_s = max(longest_s, pauses.longest_s)
    shares = [
        (now - then) / passed
        for now, then in zip((time.process_time(), _of_children(), _of(ctld)), used, strict=True)
    ]
    polls = counts.polls_total - before[0]
    decoded = counts.records_decoded_total - before[1]
    oldest = measured(f"{name}: the oldest state", "s", [max(ages)], at_most=AGE_S)
    pause = measured(
        f"{name}: the longest pause of the event loop", "ms", [1000 * longest_s], at_most=PAUSE_MS
    )
    parts = zip(("the server", "squeue", "slurmctld"), shares, strict=True)
    return [
        oldest,
        pause,
        *(
            Figure(name=f"{name}: processor of {part}", value=round(share, 4), unit="cores")
            for part, share in parts
        ),
        Figure(name=f"{name}: readings", value=polls, unit=f"in {passed:.0f} s"),
        Figure(name=f"{name}: rows decoded a reading", value=decoded / max(polls, 1), unit="rows"),
    ]


def _of(pid: int) -> float:
    # The kernel's clock of another process; see clock_getcpuclockid(3).
    return time.clock_gettime((~pid << 3) | 2)


def _of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def fill(lab: Lab) -> None:
    """Two arrays whose tasks get records of their own, since they are changed apart."""
    conf = lab.layout.slurm_conf
    text = (
        conf.read_text()
        .replace("CPUs=8", "CPUs=128")
        .replace("CoresPerSocket=8", "CoresPerSocket=128")
    )
    conf.write_text(f"{text}\nMaxJobCount={2 * WAITING}\nMaxArraySize={ARRAY + 1}\n")
    lab.slurm.ctld.restart()
    running = f"sbatch -Q --array=1-{RUNNING} --mem=10M -J runs --wrap 'sleep 100000'"
    lab.run_as("alice", ["bash", "-c", running], check=True)
    for user in _USERS:
        submit = f"sbatch --parsable -H --array=0-{ARRAY - 1} --mem=10M -J 'wa|its' --wrap true"
        job = lab.run_as(user, ["bash", "-c", submit], check=True).stdout.strip()
        split = ["scontrol", "update", f"JobId={job}_[0-{ARRAY - 2}]", "Nice=1"]
        lab.run_as(user, split, check=True, timeout_s=300)
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        shown = lab.ctl(["squeue", "-h", "-r", "-t", "R", "-o", "%A"]).stdout.split()
        if len(shown) >= RUNNING:
            return
        time.sleep(2)
    raise LabError(f"only {len(shown)} jobs run")


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    options.add_argument("--lab", help="a lab that is up, and has the jobs")
    options.add_argument("--keep", action="store_true", help="leave the lab `jobs` up")
    asked = options.parse_args()
    with ExitStack() as stack:
        if asked.lab:
            lab = Lab.attach(asked.lab)
        else:
            lab = Lab("jobs", parts={"slurm"})
            if not asked.keep:
                stack.callback(lab.down, purge=True)
            lab.up()
            fill(lab)
        folder = Path(stack.enter_context(TemporaryDirectory()))
        settle(MANY)  # as a server
        pauses = LoopPauses()
        with asyncio.Runner(loop_factory=pauses.new_loop) as runner:
            name = f"slurmctld with {WAITING + RUNNING} jobs"
            found = runner.run(figures(lab, commands_of(lab), name, pauses))
            commands = runner.run(made_up(lab, folder))
            name = f"{WAITING} made-up rows, {CHANGES_A_SECOND} changes/s"
            found += runner.run(figures(lab, commands, name, pauses))
    for figure in found:
        figure.print(load=load())
    return 0 if all(figure.ok is not False for figure in found) else 1


if __name__ == "__main__":
    sys.exit(main())
