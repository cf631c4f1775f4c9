"""Faults of a node's surroundings, made for real: a second link, a share that does not answer.

And what a real node has beside: a core for each rank.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from lab.command import run
from lab.laboratory import Lab
from tests.eventually import eventually

SHARE = Path("/home/share")
"""Where a share is mounted on a node; `/home` there is the lab's own."""
LINK = "eth1"
_CHECKOUT = Path(__file__).parents[2]


class SecondLink:
    """The far end of a link that the node has beside the one on which it is reached."""

    def __init__(self, lab: Lab, node: str) -> None:
        self._lab = lab
        self._node = node
        self._end = f"second-{node}"

    def plug_in(self) -> None:
        """A cable between the node and a switch that leads nowhere."""
        there = self._lab.layout.network_namespace(self._node)
        self._ip(f"link add {self._end} type veth peer name {LINK} netns {there}")
        self._ip(f"link set {self._end} up")
        node = self._lab.node(self._node)
        node.run(["ip", "link", "set", LINK, "up"])
        # One that never carried anything counts as a port without a cable.
        carried = f"/sys/class/net/{LINK}/statistics/tx_bytes"
        eventually(lambda: int(node.run(["cat", carried]).stdout), bool)

    def down(self) -> None:
        self._ip(f"link set {self._end} down")

    def up(self) -> None:
        self._ip(f"link set {self._end} up")

    def remove(self) -> None:
        self._ip(f"link del {self._end}")

    def _ip(self, words: str) -> None:
        run(["ip", "-n", self._lab.network.control, *words.split()])


@contextmanager
def second_links(lab: Lab, *nodes: str) -> Iterator[dict[str, SecondLink]]:
    """A second link a node, all of them up."""
    links = {each: SecondLink(lab, each) for each in nodes}
    begun = []
    try:
        for each in links.values():
            begun.append(each)
            each.plug_in()
        yield links
    finally:
        for each in begun:
            each.remove()


class NodeShare:
    """A share on one node; see `faulty_share` for what it understands."""

    def __init__(self, lab: Lab, node: str) -> None:
        (lab.layout.home / SHARE.name).mkdir(exist_ok=True)
        argv = [sys.executable, "-m", "tests.e2e.faulty_share", str(SHARE)]
        self._server = subprocess.Popen(
            lab.node(node).argv(["env", "-C", str(_CHECKOUT), *argv]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._server.stdout is not None
        assert self._server.stdout.readline() == "mounted\n"

    def answers_after(self, seconds: float) -> None:
        self._tell(f"{seconds:g}")

    def stops_answering(self) -> None:
        self._tell("never")

    def _tell(self, words: str) -> None:
        assert self._server.stdin is not None
        self._server.stdin.write(f"{words}\n")
        self._server.stdin.flush()

    def end(self) -> None:
        self._server.communicate(timeout=20)


@contextmanager
def shares(lab: Lab, *nodes: str) -> Iterator[dict[str, NodeShare]]:
    """A share a node, in the place where jobs that start from now on find it."""
    made: dict[str, NodeShare] = {}
    try:
        for each in nodes:
            made[each] = NodeShare(lab, each)
        yield made
    finally:
        for share in made.values():
            share.end()
        with suppress(OSError):
            (lab.layout.home / SHARE.name).rmdir()


def core_to_itself(lab: Lab, job: int, rank: int) -> None:
    """As a rank of a real job has: here all nodes share a few, and the tests have them, too."""
    wanted = {f"SLURM_JOB_ID={job}".encode(), f"SLURM_PROCID={rank}".encode()}
    found = [
        folder
        for folder in Path("/proc").iterdir()
        if folder.name.isdigit() and wanted <= _environment(folder) and _is_of(lab, folder)
    ]
    assert found
    everybody = Path("/sys/fs/cgroup/cpu/cgroup.procs")
    for each in found:
        if everybody.exists():
            # Out of the lab's share of the processors; what is counted of the job stays.
            everybody.write_text(each.name)
        os.setpriority(os.PRIO_PROCESS, int(each.name), -20)
        session = Path("/proc", each.name, "autogroup")
        if session.exists():
            # The kernel weighs sessions first, and processes only within theirs.
            session.write_text("-20")


def _environment(process: Path) -> set[bytes]:
    try:
        return set((process / "environ").read_bytes().split(b"\0"))
    except OSError:
        return set()


def _is_of(lab: Lab, process: Path) -> bool:
    try:
        return f"/{lab.layout.cgroup()}/" in (process / "cgroup").read_text()
    except OSError:
        return False
