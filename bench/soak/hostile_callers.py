"""One hostile caller of `bench.soak.hostile`: asks for too much, in a few lanes, at a stated pace.

    python -m bench.soak.hostile_callers ROLE JOB REPLICAS FILE-SERVERS CA-FILE PACE

The token is in LATTICE_TOKEN. It is told rounds, `hostile 28` or `control 28`, and says what it
got in each. A lane asks its next question when that is due and the last one is answered, so a
server that is slow is asked less. A control round repeats the hostile round before it against
plain file servers: as many questions, answers as large, slow connections as long.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import ssl
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from urllib.parse import quote, urlencode

from bench.soak.orders import orders, say

WORST_BY_LINES = r"\Ano such line"
"""`\\A` is asked line by line, in Python: the most work for the lock that the event loop needs."""
WORST_BY_STATES = "(?:[0-4a-c].{18}|[5-9].{17})q"
"""Too many states for RE2 to remember."""
RARE = "^needle$"
LARGEST_PAGE = 10_000
_ANSWER_S = 60.0
_DRIP_S = 1.0
_LONGEST_HOLD_S = 30.0
_CURSOR = b'"cursor":"'


@dataclass(frozen=True, slots=True)
class Question:
    """One request."""

    path: str
    method: str = "GET"
    body: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """What a caller does, how often a second, and in how many lanes at once."""

    lanes: int
    per_second: float
    questions: Callable[[str], Sequence[Question]] = lambda _: ()
    """Of a job's id; a lane asks one after the other."""
    head: bytes = b""
    """What a slow connection begins with; a byte a second follows."""
    held_s: float = 0.0
    """How long a server keeps such a one; only for a control round before any hostile one."""
    size_bytes: int = 500
    """Of an answer; likewise."""


def _page(**asked: str | int) -> Callable[[str], Sequence[Question]]:
    return lambda job: (Question(f"/v1/allocations/{job}/logs?{urlencode(asked)}"),)


def _public(_: str) -> Sequence[Question]:
    return tuple(map(Question, ("/healthz", "/v1/auth/discovery", "/v1/openapi.json")))


def _tickets(job: str) -> Sequence[Question]:
    return (Question(f"/v1/allocations/{job}/attach/tickets", "POST", b""),)


def _submit(_: str) -> Sequence[Question]:
    script = {"script": "#!/bin/sh\n#SBATCH --hold\ntrue\n"}
    return (Question("/v1/allocations", "POST", json.dumps(script).encode()),)


_SLOW_HEAD = b"GET /healthz HTTP/1.1\r\nHost: slow\r\nX-Slow: "
_SLOW_BODY = (
    b"POST /v1/allocations HTTP/1.1\r\nHost: slow\r\nAuthorization: Bearer %s\r\n"
    b"Content-Type: application/json\r\nContent-Length: 100000\r\n\r\n{"
)

ROLES = {
    "grep by lines": Role(lanes=2, per_second=0.5, questions=_page(grep=WORST_BY_LINES)),
    "grep by states": Role(lanes=2, per_second=0.5, questions=_page(grep=WORST_BY_STATES)),
    "grep for what is rare": Role(lanes=2, per_second=0.5, questions=_page(grep=RARE)),
    "huge pages": Role(
        lanes=2, per_second=2.0, questions=_page(limit=LARGEST_PAGE), size_bytes=300_000
    ),
    "slow headers": Role(lanes=40, per_second=4.0, head=_SLOW_HEAD, held_s=10.0),
    "slow bodies": Role(lanes=20, per_second=4.0, head=_SLOW_BODY, held_s=5.0),
    "public routes": Role(lanes=8, per_second=60.0, questions=_public, size_bytes=50_000),
    "tickets": Role(lanes=4, per_second=10.0, questions=_tickets),
    "submits with a slow profile": Role(lanes=4, per_second=1.0, questions=_submit),
}


@dataclass(frozen=True, slots=True)
class Plan:
    """How a round is asked. `size_bytes` is None where replicas are asked, in a hostile round."""

    per_second: float
    size_bytes: int | None = None
    held_s: float = _LONGEST_HOLD_S


@dataclass(slots=True)
class Tally:
    """What came of a round, over all lanes."""

    answers: Counter[str] = field(default_factory=Counter)
    """By status; `closed` without one, `lost` on the way, `held` to the end of our patience."""
    received_bytes: int = 0
    held_s: float = 0.0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, outcome: str, received_bytes: int, held_s: float) -> None:
        with self.lock:
            self.answers[outcome] += 1
            self.received_bytes += received_bytes
            self.held_s += held_s

    def repeated(self, seconds: float) -> Plan | None:
        """The plan of a control round like this one."""
        count = self.answers.total()
        if not count:
            return None
        return Plan(count / seconds, self.received_bytes // count, self.held_s / count)


class Lane:
    """One thing at a time, at one server."""

    def __init__(self, role: Role, job: str, server: str, tls: ssl.SSLContext, token: str) -> None:
        self._role = role
        self._questions = role.questions(job)
        self._turn = 0
        host, _, port = server.rpartition(":")
        self._address = (host, int(port))
        self._tls = tls
        self._token = token
        self._line = http.client.HTTPSConnection(*self._address, context=tls, timeout=_ANSWER_S)
        self._cursor = ""

    def run(self, plan: Plan, first_s: float, gap_s: float, end_s: float, tally: Tally) -> None:
        """Until the end, by the monotonic clock; what is late is not caught up with."""
        due_s = first_s
        while due_s < end_s:
            time.sleep(max(0.0, due_s - time.monotonic()))
            begun = time.monotonic()
            if self._role.head:
                outcome, size = self._hold(min(begun + plan.held_s, end_s))
            else:
                outcome, size = self._ask(plan.size_bytes)
            tally.add(outcome, size, time.monotonic() - begun)
            due_s = max(due_s + gap_s, time.monotonic())
        self._line.close()

    def _ask(self, size_bytes: int | None) -> tuple[str, int]:
        asked = self._questions[self._turn % len(self._questions)]
        self._turn += 1
        path = f"/{size_bytes}"
        if size_bytes is None:
            path = asked.path + (f"&cursor={quote(self._cursor)}" if self._cursor else "")
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        if asked.body is not None:
            headers["Content-Type"] = "application/json"
        try:
            try:
                status, content = self._answer(asked, path, headers)
            except (ConnectionError, ssl.SSLError):
                # A server closes what was idle for a while; that is no answer.
                self._line.close()
                status, content = self._answer(asked, path, headers)
        except (OSError, http.client.HTTPException):
            self._line.close()
            return "lost", 0
        if status == http.client.OK and "?" in path:
            # So a log is gone through to its end, round after round, and then again.
            self._cursor = cursor_in(content)
        return str(status), len(content)

    def _answer(self, asked: Question, path: str, headers: dict[str, str]) -> tuple[int, bytes]:
        self._line.request(asked.method, path, asked.body, headers)
        answer = self._line.getresponse()
        return answer.status, answer.read()

    def _hold(self, until_s: float) -> tuple[str, int]:
        """A request that does not get done; how the server ended it."""
        begin = self._role.head
        begin = begin % self._token.encode() if b"%s" in begin else begin
        try:
            with self._tls.wrap_socket(
                socket.create_connection(self._address, _ANSWER_S), server_hostname=self._address[0]
            ) as line:
                line.sendall(begin)
                line.settimeout(_DRIP_S)
                while time.monotonic() < until_s:
                    try:
                        content = line.recv(65_536)
                    except TimeoutError:
                        line.sendall(b"a")
                        continue
                    return (content[9:12].decode("latin-1") or "closed"), len(content)
        except OSError:
            return "lost", 0
        return "held", 0


def cursor_in(page: bytes) -> str:
    """Where the next page begins, without reading a whole page of JSON for it; may be empty."""
    begin = page.rfind(_CURSOR)
    if begin < 0:
        return ""
    begin += len(_CURSOR)
    return page[begin : page.index(b'"', begin)].decode()


def run_round(lanes: Sequence[Lane], plan: Plan, seconds: float) -> Tally:
    """All lanes at once, evenly spread."""
    tally, now = Tally(), time.monotonic()
    threads = [
        threading.Thread(
            target=lane.run,
            args=(
                plan,
                now + number / plan.per_second,
                len(lanes) / plan.per_second,
                now + seconds,
                tally,
            ),
        )
        for number, lane in enumerate(lanes)
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    return tally


def main(name: str, job: str, replicas: str, file_servers: str, authority: str, pace: str) -> None:
    role, tls = ROLES[name], ssl.create_default_context(cafile=authority)
    token = os.environ.get("LATTICE_TOKEN", "")
    per_second = role.per_second * float(pace)
    control = Plan(per_second, role.size_bytes, role.held_s)

    def lanes(servers: str) -> list[Lane]:
        names = servers.split(",")
        return [
            Lane(role, job, names[number % len(names)], tls, token) for number in range(role.lanes)
        ]

    at_replicas, at_file_servers = lanes(replicas), lanes(file_servers)
    for order in orders():
        kind, seconds = order.split()
        hostile = kind == "hostile"
        asked, plan = (at_replicas, Plan(per_second)) if hostile else (at_file_servers, control)
        tally = run_round(asked, plan, float(seconds))
        if hostile:
            control = tally.repeated(float(seconds)) or control
        say({"answers": tally.answers, "received_bytes": tally.received_bytes})


if __name__ == "__main__":
    main(*sys.argv[1:])
