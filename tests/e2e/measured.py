"""What the metric store has of a job, asked as its owner through the scoped API; and known loads.

A load says itself what it used: it leaves a JSON file in its owner's home when it is done, and
stays until it is let go, so that the last look at it is one after its work. Accounting has its own
figures for a job that is over.
"""

from __future__ import annotations

import json
import time
from typing import Any
from urllib.parse import urlencode

from lab.laboratory import Lab
from tests.e2e.people import Person
from tests.eventually import eventually

_PROGRAM = r"""
import json, os, resource, signal, socket, sys, time
kind, amount, pace, name = sys.argv[1], float(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
folder = os.path.expanduser(sys.argv[5])
told, held = {}, []
def burn(share, seconds):
    end = time.monotonic() + seconds
    while (now := time.monotonic()) < end:
        while time.monotonic() < now + 0.05 * share: pass
        if share < 1: time.sleep(0.05 * (1 - share))
if kind == "processor":
    # `amount` cores' worth for `pace` seconds: whole cores in children, the rest here.
    children = []
    for _ in range(int(amount)):
        if (child := os.fork()) == 0:
            burn(1, pace); os._exit(0)
        children.append(child)
    burn(amount % 1, pace)
    for child in children: os.waitpid(child, 0)
elif kind == "memory":
    block = bytearray(int(amount))
    for at in range(0, len(block), 4096): block[at] = 1
    held.append(block)
    path = f"{folder}/cached-{os.getpid()}"
    with open(path, "wb") as file:
        for _ in range(int(pace) >> 20): file.write(b"x" * (1 << 20))
        file.flush(); os.fsync(file.fileno())
    held.append(open(path, "rb")); os.unlink(path)
elif kind == "writer":
    path = f"{folder}/written-{os.getpid()}"
    began, piece = time.monotonic(), b"y" * (1 << 20)
    with open(path, "wb", buffering=0) as file:
        os.unlink(path)  # whoever ends it, nothing of it stays
        for number in range(int(amount)):
            file.write(piece)
            if number % 10 == 9: os.fsync(file.fileno())
            time.sleep(max(0, began + (number + 1) / pace - time.monotonic()))
    told["seconds"] = time.monotonic() - began
elif kind == "sender":
    peer = socket.create_connection((sys.argv[6], 47011))
    began, piece = time.monotonic(), b"z" * (1 << 20)
    for number in range(int(amount)):
        peer.sendall(piece)
        time.sleep(max(0, began + (number + 1) / pace - time.monotonic()))
    peer.close()
elif kind == "receiver":
    door = socket.create_server(("", 47011)); open(os.path.expanduser(f"~/{name}.up"), "w").close()
    peer, _ = door.accept(); total = 0
    while piece := peer.recv(1 << 20): total += len(piece)
    told["received"] = total
used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
told["processor_s"] = sum(each.ru_utime + each.ru_stime for each in used)
told["largest_bytes"] = used[0].ru_maxrss * 1024
with open(os.path.expanduser(f"~/{name}.new"), "w") as file: json.dump(told, file)
os.rename(os.path.expanduser(f"~/{name}.new"), os.path.expanduser(f"~/{name}.told"))
while not os.path.exists(os.path.expanduser(f"~/{name}.go")): time.sleep(0.2)
"""


class Load:
    """One program of a job of alice's that does a known amount of something, to files in `folder`.

    How much and how fast is of the kind: cores and seconds, bytes held and bytes written beside
    them, megabytes and megabytes a second.
    """

    def __init__(
        self,
        lab: Lab,
        name: str,
        kind: str,
        amount: float,
        pace: float = 0,
        *,
        folder: str = "~",
    ) -> None:
        self._home = lab.layout.home / "alice"
        self._name = name
        for ending in ("told", "go", "up"):
            self._file(ending).unlink(missing_ok=True)
        quoted = "'" + _PROGRAM.replace("'", "'\\''") + "'"
        self.command = f"/usr/bin/python3 -c {quoted} {kind} {amount} {pace} {name} '{folder}'"

    def _file(self, ending: str) -> Any:
        return self._home / f"{self._name}.{ending}"

    @property
    def listening(self) -> bool:
        return bool(self._file("up").exists())

    def told(self, timeout_s: float = 200.0) -> dict[str, float]:
        """What the load itself says that it used."""
        eventually(self._file("told").exists, bool, patience_s=timeout_s)
        found: dict[str, float] = json.loads(self._file("told").read_text())
        return found

    def let_go(self) -> None:
        self._file("go").touch()


class Measured:
    """The metric store, seen by one person."""

    def __init__(self, lab: Lab, person: Person) -> None:
        self._lab = lab
        self._person = person

    def query(self, promql: str) -> list[dict[str, Any]]:
        """An instant query as the person; each with `metric` and `value`. None: nobody answers."""
        answer = self._asked("/prometheus/api/v1/query?" + urlencode({"query": promql}))
        if answer.get("errorType") == "unavailable":
            return []
        assert answer.get("status") == "success", answer
        found: list[dict[str, Any]] = answer["data"]["result"]
        return found

    def _asked(self, path: str) -> Any:
        done = self._lab.ctl(
            [
                *("curl", "-sS", "--cacert", str(self._lab.layout.certificates / "ca.crt")),
                *("-H", f"Authorization: Bearer {self._person.bearer['LATTICE_TOKEN']}"),
                self._lab.servers[0].url + path,
            ],
            check=False,
        )
        return json.loads(done.stdout or "{}")

    def newest(self, metric: str, job: int, since: float, **labels: str) -> float:
        """The newest value of a metric of a job, one that was measured after `since`.

        The sum over what the labels leave open, as nodes.
        """
        wanted = ",".join(f'{name}="{value}"' for name, value in labels.items())
        selector = f'lattice_{metric}{{alloc="{job}",{wanted}}}'

        def look() -> list[dict[str, Any]]:
            fresh = self.query(f"timestamp({selector}) > {since}")
            return self.query(f"sum({selector})") if fresh else []

        found = eventually(look, bool)
        return float(found[0]["value"][1])


def accounted(lab: Lab, job: int, field: str) -> float:
    """What Slurm's accounting has of the batch step of a job that is over: seconds, or bytes."""
    asked = ["sacct", "-n", "-P", "--noconvert", "-j", str(job), "-o", f"JobID,{field}"]

    def look() -> float:
        rows = dict(line.split("|") for line in lab.ctl(asked).stdout.splitlines() if "|" in line)
        return _plain(rows.get(f"{job}.batch", ""))

    return eventually(look, lambda figure: figure > 0)


_SIZES = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def _plain(text: str) -> float:
    """`1-02:03:04.5` in seconds; sizes in bytes."""
    if text[-1:] in _SIZES:
        return float(text[:-1]) * _SIZES[text[-1]]
    days, _, rest = text.rpartition("-")
    *larger, seconds = rest.split(":")
    whole: int = sum(int(each) * 60**place for place, each in enumerate(reversed(larger), 1))
    return int(days or 0) * 86400 + whole + float(seconds or 0)


def now() -> float:
    return time.time()
