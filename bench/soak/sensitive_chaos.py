"""Kills and cuts of a lab's parts every few seconds, for `bench.soak.sensitive`.

Three lanes work at the same time: servers and etcd, stores and gate, nodes. A lane does one thing
at a time and undoes it. So a server may die while the object store is away and a node is cut off.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from lab.command import LabError
from lab.etcd import Etcd
from lab.laboratory import Lab
from lab.process import Process
from lab.server import Server

_PAUSE_S = (1.0, 6.0)
"""Between two faults of a lane."""
_UNDONE_WITHIN_S = 180.0
_LONG = 0.12
"""The share of faults that last `long_s`."""

Step = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong, and how it is put right."""

    name: str
    begin: Step
    undo: Step
    usual_s: tuple[float, float]
    long_s: tuple[float, float]
    weight: int = 2


class Chaos:
    """`running` until the block ends; then everything is put right."""

    def __init__(self, lab: Lab, seed: int) -> None:
        self._seed = seed
        self._lanes: dict[str, Sequence[Fault]] = {
            "servers": _of_servers(lab),
            "stores": _of_stores(lab),
            "nodes": _of_nodes(lab),
        }
        self._done = threading.Event()
        self.done: Counter[str] = Counter()
        self.problems: list[str] = []

    @contextmanager
    def running(self) -> Iterator[None]:
        with ExitStack() as stack:
            for number, (name, faults) in enumerate(self._lanes.items()):
                chance = random.Random(self._seed * 100 + number)
                thread = threading.Thread(target=self._run, args=(faults, chance), name=name)
                thread.start()
                stack.callback(thread.join)
            stack.callback(self._done.set)
            yield

    def _run(self, faults: Sequence[Fault], chance: random.Random) -> None:
        while not self._done.wait(chance.uniform(*_PAUSE_S)):
            (fault,) = chance.choices(faults, [each.weight for each in faults])
            span = fault.long_s if chance.random() < _LONG else fault.usual_s
            try:
                fault.begin()
                self._done.wait(chance.uniform(*span))
            except LabError as problem:
                self.problems.append(f"{fault.name}: {problem}")
            finally:
                self._undo(fault)
            self.done[fault.name] += 1

    def _undo(self, fault: Fault) -> None:
        """What was stopped may need others to start again, which are away now."""
        deadline_s = time.monotonic() + _UNDONE_WITHIN_S
        while True:
            try:
                fault.undo()
            except LabError as problem:
                if time.monotonic() > deadline_s:
                    self.problems.append(f"{fault.name}, undone: {problem}")
                    return
                time.sleep(1.0)
            else:
                return


def _killed(name: str, process: Process, start: Step, weight: int = 2) -> Fault:
    return Fault(f"{name} killed", process.kill, start, (0.0, 4.0), (8.0, 20.0), weight)


def _frozen(name: str, process: Process, weight: int = 2) -> Fault:
    def thaw() -> None:
        if process.condition == "frozen":
            process.thaw()

    return Fault(f"{name} stopped", process.freeze, thaw, (0.5, 6.0), (12.0, 25.0), weight)


def _of_servers(lab: Lab) -> list[Fault]:
    found = []
    for server in lab.servers:
        found.append(_killed(server.name, server.process, server.start, 5))
        found.append(_frozen(server.name, server.process))
        found.append(_cut_from_etcd(server))
    found.append(_all_killed(lab.servers))
    for number, member in enumerate(lab.etcd.members):
        found.append(_killed(member.name, member, member.up, 2))
        found.append(_cut_from_peers(lab.etcd, number))
    return found


def _cut_from_etcd(server: Server) -> Fault:
    """For so long, at times, that the other one takes it for dead."""
    name = f"{server.name} cut off from etcd"
    return Fault(name, server.cut_off_state, server.heal_state, (1.0, 8.0), (60.0, 110.0), 2)


def _cut_from_peers(etcd: Etcd, number: int) -> Fault:
    name = f"{etcd.members[number].name} cut off from its peers"

    def cut() -> None:
        etcd.cut_off_peers(number)

    def heal() -> None:
        etcd.heal_peers(number)

    return Fault(name, cut, heal, (1.0, 5.0), (8.0, 15.0), 1)


def _all_killed(servers: Sequence[Server]) -> Fault:
    def kill() -> None:
        for server in servers:
            server.kill()

    def start() -> None:
        for server in servers:
            server.start()

    return Fault("all servers killed", kill, start, (0.0, 2.0), (5.0, 15.0), 2)


def _of_stores(lab: Lab) -> list[Fault]:
    store, gate = lab.seaweedfs.process, lab.gate.process
    return [
        Fault("object store killed", store.kill, store.up, (0.0, 6.0), (32.0, 40.0), 3),
        _frozen("object store", store),
        _killed("gate", gate, gate.up, 3),
        _frozen("gate", gate, 1),
    ]


def _of_nodes(lab: Lab) -> list[Fault]:
    found = []
    for name in ("n1", "n2", "n3"):
        node = lab.node(name)
        weight = 1 if name == "n3" else 3
        found.append(_killed(f"agent of {name}", node.agent.process, node.agent.start, weight))
        found.append(_frozen(f"agent of {name}", node.agent.process, weight))
        # Slurm takes a node for dead after 20 s, and its jobs with it.
        found.append(
            Fault(f"{name} cut off", node.cut_off, node.heal, (1.0, 6.0), (8.0, 13.0), weight)
        )
    return found
