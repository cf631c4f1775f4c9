"""What the agent would see on this node, one JSON line an event: for tests and for a person."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from dataclasses import asdict
from pathlib import Path

from lattice.adapters.linux.nodejobs import NodeJobs, Roots
from lattice.base.clock import SystemClock
from lattice.domain.nodejobs import JobAppeared, JobEvent, NodeJobEnded


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m lattice.adapters.linux", description=__doc__)
    parser.add_argument("--proc", type=Path, default=Roots().proc)
    parser.add_argument("--cgroup", type=Path, default=Roots().cgroup)
    parser.add_argument("--spool", type=Path, help="Slurm's SlurmdSpoolDir on this node")
    parser.add_argument("--rescan", type=float, default=60.0, help="seconds between full readings")
    parser.add_argument("--once", action="store_true", help="what is here now, and no more")
    asked = parser.parse_args()
    jobs = NodeJobs(
        Roots(asked.proc, asked.cgroup, asked.spool), SystemClock(), rescan_s=asked.rescan
    )
    try:
        asyncio.run(_once(jobs) if asked.once else _follow(jobs))
    except KeyboardInterrupt:
        sys.exit(130)


async def _once(jobs: NodeJobs) -> None:
    await jobs.refresh()
    for job in jobs.jobs.values():
        _write_event(JobAppeared(job))


async def _follow(jobs: NodeJobs) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(jobs.run(), name="node jobs")
        await jobs.ready()
        _write({"event": "ready", "trouble": jobs.trouble})
        async for event in jobs.changes():
            _write_event(event)


def _write_event(event: JobEvent) -> None:
    kind = {JobAppeared: "appeared", NodeJobEnded: "ended"}.get(type(event), "changed")
    _write({"event": kind, **asdict(event.job), "id": event.job.id})


def _write(line: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
