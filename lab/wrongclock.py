"""A node of the lab whose clock is wrong, as far as its agent and its root helper can tell.

All nodes share the machine's one clock, so the two are lied to: by libfaketime about the time, by
`wrongclock.c` about the times of files, and by a file over `/proc/stat` about when the node booted.
What counts without a clock (CLOCK_MONOTONIC, CLOCK_BOOTTIME) stays true, as on a real node. Slurm
and the jobs keep the right time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lab.command import LabError, run
from lab.node import Node

_SOURCE = Path(__file__).with_suffix(".c")


@contextmanager
def wrong_clock(node: Node, ahead_s: int) -> Iterator[None]:
    """Agent and helper start anew with that clock; and anew with the right one at the end."""
    agent, helper = node.agent, node.agent.helper
    files = agent.folder.parent / "wrongclock.so"
    run(["cc", "-shared", "-fPIC", "-O1", "-Wall", "-o", str(files), str(_SOURCE)])
    environment = {
        "LD_PRELOAD": f"{files} {_library()}",
        "WRONG_CLOCK_S": str(ahead_s),
        "FAKETIME": f"{ahead_s:+d}s",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        # It looks at its environment again now and then, and the helper empties its own.
        "FAKETIME_CACHE_DURATION": "100000",
    }
    _stop(node)
    agent.environment.update(environment)
    helper.environment.update(environment)
    stat = agent.folder / "wrong-stat"
    stat.write_text(_shifted(node.run(["cat", "/proc/stat"]).stdout, ahead_s))
    node.run(["mount", "--bind", str(stat), "/proc/stat"])
    try:
        agent.start()
        yield
    finally:
        _stop(node)
        for name in environment:
            agent.environment.pop(name, None)
            helper.environment.pop(name, None)
        node.run(["umount", "/proc/stat"])
        agent.start()


def _stop(node: Node) -> None:
    node.agent.kill()
    node.agent.helper.kill()
    # What the helper was told the last time, which outlives it.
    (node.agent.helper.folder / "clock").unlink(missing_ok=True)


def _shifted(stat: str, ahead_s: int) -> str:
    lines = stat.splitlines()
    booted = next(line for line in lines if line.startswith("btime "))
    lines[lines.index(booted)] = f"btime {int(booted.split()[1]) + ahead_s}"
    return "\n".join(lines) + "\n"


def _library() -> str:
    for each in Path("/usr/lib").glob("*/faketime/libfaketime.so.1"):
        return str(each)
    raise LabError("libfaketime is not installed: scripts/setup")
