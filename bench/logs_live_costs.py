"""Who follows a job in the live benches, and what the processes on the path of its lines use.

A follower is what prints the lines, with the process ids of its path. A process counts with its
descendants, so `sshd` has the session and its `tail`. Agent and helper also capture a job that
nobody follows; what that costs is a figure of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from bench.figures import Figure, measured, paired
from bench.logs_live_jobs import NODE, Bench, Job, ended
from bench.logs_live_peers import Ssh, bare_relay
from bench.measuring import Meter

Used = Sequence[Mapping[str, float]]
"""What each process used, by rounds."""
_BARE_OF = {"agent": "node", "server": "relay", "client": "client"}
"""Which process of the bare relay stands where one of Lattice does."""


@dataclass(frozen=True, slots=True)
class Follower:
    """What it prints comes from the descriptor."""

    descriptor: int
    pids: Mapping[str, int]


def standing_pids(bench: Bench) -> dict[str, int]:
    """The processes of Lattice that run whether or not somebody follows."""
    agent = bench.lab.node(NODE).agent
    return {
        "agent": agent.process.pid,
        "helper": agent.helper.process.pid,
        "server": bench.lab.servers[0].process.pid,
    }


@contextmanager
def lattice_follower(bench: Bench, job: Job, *options: str) -> Iterator[Follower]:
    """`lattice logs --follow`."""
    viewer = bench.follow(job, *options)
    with ended(viewer) as printed:
        yield Follower(printed, standing_pids(bench) | {"client": viewer.pid})


@contextmanager
def bare_follower(bench: Bench, job: Job) -> Iterator[Follower]:
    """The bare relay; it begins at the end of the file."""
    with bare_relay(bench, job) as peers:
        assert peers.client.stdout is not None
        pids = {"node": peers.node.pid, "relay": peers.relay.pid, "client": peers.client.pid}
        yield Follower(peers.client.stdout.fileno(), pids)


@contextmanager
def ssh_follower(ssh: Ssh, job: Job, begin: str) -> Iterator[Follower]:
    """`tail -f` over ssh; `begin` as `tail -n` has it."""
    viewer = ssh.tail(job, begin)
    with ended(viewer) as printed:
        yield Follower(printed, {"sshd": ssh.pid, "ssh": viewer.pid})


class Costs:
    """Processor time of each path, by rounds."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._used: dict[str, list[dict[str, float]]] = {}

    @contextmanager
    def of(
        self, name: str, follower: Follower, *, scale: float = 1.0, deferred: bool = False
    ) -> Iterator[None]:
        """What the path uses until the context ends, times the scale.

        `deferred` adds what it still has to do then. Beside ssh nobody follows by Lattice: what its
        processes use meanwhile is noted, too.
        """
        meters = {name: Meter(follower.pids)}
        if name == "ssh":
            meters["nobody"] = Meter(standing_pids(self._bench))
        yield
        for meter in meters.values() if deferred else ():
            meter.until_calm()
        for each, meter in meters.items():
            used = {process: value * scale for process, value in meter.used_s().items()}
            self._used.setdefault(each, []).append(used)

    def figures(self, name: str, unit: str) -> list[Figure]:
        """Of each process, and of all together."""
        return cost_figures(name, unit, self._used)


def cost_figures(name: str, unit: str, used: Mapping[str, Used]) -> list[Figure]:
    """`used` has `ours`, `bare`, `ssh`, and `nobody` for Lattice without a follower."""
    ours, bare = used["ours"], used["bare"]
    found = []
    for process in ours[0]:
        values = [each[process] for each in ours]
        if process in _BARE_OF:
            peer = [each[_BARE_OF[process]] for each in bare]
            found.append(
                paired(f"{name}, {process} to bare {_BARE_OF[process]}", unit, values, peer)
            )
        else:
            found.append(measured(f"{name}, {process}", unit, values))
    sums = {path: [sum(each.values()) for each in rounds] for path, rounds in used.items()}
    found += [
        paired(f"{name}, all processes, bare relay", unit, sums["ours"], sums["bare"]),
        paired(f"{name}, all processes, ssh and sshd", unit, sums["ours"], sums["ssh"]),
    ]
    for process in used["nobody"][0]:
        values = [each[process] for each in used["nobody"]]
        found.append(measured(f"{name}, {process} while nobody follows", unit, values))
    return found
