"""What viewers of a job's output cost: one that hardly reads, and many who all do.

Viewers are clients of the SDK. Each round has a server that was just started, because a process
keeps memory that it once had.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.figures import Figure, measured, paired
from bench.logs_live_jobs import NODE, TICKER, Bench, Job, flood, note
from bench.measuring import family_processor_s, resident_kb

VIEWERS = 200
SETTLE_S = 3.0
LINE_GOAL_US, MEMORY_GOAL_KIB = 200.0, 130.0
ONCE_GOAL = 1.2
"""What many viewers may cost the node, to one."""
_WATCH_S = 10.0


def memory(bench: Bench) -> list[Figure]:
    """Of a fresh server: idle, and at most while a job floods and its viewer hardly reads."""
    server = _fresh_server(bench)
    with flood(bench) as wave, _crowd(bench, wave.job, 1, pause_s=0.1) as crowd:
        idle = resident_kb(server)
        wave.sign.touch()
        most = idle
        for _ in range(200):
            time.sleep(0.1)
            most = max(most, resident_kb(server))
        had = _ask(crowd)
    growth = most / idle
    note("memory", {"idle": idle, "most": most, "viewer": had})
    return [
        Figure(
            name="server memory, fast writer and slow reader to idle",
            value=most,
            unit="KiB",
            bare=idle,
            ratio=round(growth, 3),
            goal=1.2,
            ok=growth <= 1.2,
        )
    ]


def viewers(bench: Bench, rounds: int, count: int = VIEWERS) -> list[Figure]:
    """What each of many viewers costs the server, and what they cost the node."""
    found = []
    with bench.job(TICKER.replace("0.02", "1.0")) as job:
        for _ in range(rounds):
            found.append(_round(bench, job, count))
            note("viewers", found[-1])
    return viewer_figures(found, count)


def viewer_figures(found: Sequence[dict[str, float]], count: int) -> list[Figure]:
    """`found` has a round each; `one_` and `many_` are rates with one viewer and with many."""

    def rounds_of(name: str) -> list[float]:
        return [each[name] for each in found]

    cost_us = [
        (each["many_server"] - each["one_server"]) / (count - 1) / each["many_lines"] * 1e6
        for each in found
    ]
    memory_kib = [(each["many_kib"] - each["one_kib"]) / (count - 1) for each in found]
    return [
        measured(
            f"server processor a viewer and line, of {count}", "µs", cost_us, at_most=LINE_GOAL_US
        ),
        measured(f"server memory a viewer, of {count}", "KiB", memory_kib, at_most=MEMORY_GOAL_KIB),
        measured(
            f"server processor, {count} viewers of a line a second",
            "cores",
            rounds_of("many_server"),
        ),
        measured(f"lines a viewer, of {count}", "1/s", rounds_of("many_lines")),
        *(
            paired(
                f"bytes the {what}, {count} viewers to one",
                "B/s",
                rounds_of(f"many_{field}"),
                rounds_of(f"one_{field}"),
                at_most=ONCE_GOAL,
            )
            for what, field in (("node sends", "node_bytes"), ("agent reads", "read_bytes"))
        ),
    ]


def _round(bench: Bench, job: Job, count: int) -> dict[str, float]:
    server, agent = _fresh_server(bench), bench.lab.node(NODE).agent.process.pid
    found: dict[str, float] = {}
    for name, size in (("one", 1), ("many", count)):
        with _crowd(bench, job, size, pause_s=0.0) as crowd:
            time.sleep(SETTLE_S)
            rates = _watch(bench, server, agent, crowd, size)
            found |= {f"{name}_{field}": rate for field, rate in rates.items()}
            found[f"{name}_kib"] = resident_kb(server)
    return found


def _watch(
    bench: Bench, server: int, agent: int, crowd: subprocess.Popen[str], count: int
) -> dict[str, float]:
    """What grows in a second."""
    counters: dict[str, Callable[[], float]] = {
        "server": lambda: family_processor_s(server),
        "node_bytes": lambda: float(_sent_bytes(bench)),
        "read_bytes": lambda: float(_read_bytes(agent)),
        "lines": lambda: _lines_each(crowd, count),
    }
    # Each with its own moment: on a busy machine it takes its time to read one.
    before = {name: (read(), time.monotonic()) for name, read in counters.items()}
    time.sleep(_WATCH_S)
    after = {name: (read(), time.monotonic()) for name, read in counters.items()}
    return {
        name: (after[name][0] - before[name][0]) / (after[name][1] - before[name][1])
        for name in counters
    }


def _lines_each(crowd: subprocess.Popen[str], count: int) -> float:
    had = _ask(crowd)
    if had["lost"]:
        raise AssertionError(f"{had['lost']} viewers were lost")
    return had["lines"] / count


def _sent_bytes(bench: Bench) -> int:
    """What the node has sent to the outside, of everything on it."""
    shown = bench.lab.node(NODE).run(["cat", "/proc/net/dev"]).stdout
    rows = [line.replace(":", " ").split() for line in shown.splitlines()[2:]]
    return sum(int(row[9]) for row in rows if row[0] != "lo")


def _read_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/io").read_text().splitlines():
        if line.startswith("rchar:"):
            return int(line.split()[1])
    raise AssertionError("no rchar")


@contextmanager
def _crowd(
    bench: Bench, job: Job, count: int, *, pause_s: float
) -> Iterator[subprocess.Popen[str]]:
    lab = bench.lab
    ca = str(lab.layout.certificates / "ca.crt")
    given = (str(count), lab.servers[0].url, ca, str(job.id), str(pause_s))
    argv = [sys.executable, "-m", "bench.logs_live_crowd", *given]
    path = {"PYTHONPATH": str(Path(__file__).parents[1])}
    crowd = lab.control.room.popen(argv, env=path, stdin=subprocess.PIPE, stderr=None)
    try:
        assert crowd.stdin is not None
        assert crowd.stdout is not None
        crowd.stdin.write(bench.token + "\n")
        crowd.stdin.flush()
        if crowd.stdout.readline().strip() != "ready":
            raise AssertionError("the viewers were not let in")
        yield crowd
    finally:
        crowd.kill()
        crowd.communicate()


def _ask(crowd: subprocess.Popen[str]) -> dict[str, int]:
    assert crowd.stdin is not None
    assert crowd.stdout is not None
    crowd.stdin.write("\n")
    crowd.stdin.flush()
    had: dict[str, int] = json.loads(crowd.stdout.readline())
    return had


def _fresh_server(bench: Bench) -> int:
    server = bench.lab.servers[0]
    server.kill()
    server.start()
    time.sleep(SETTLE_S)
    return server.process.pid
