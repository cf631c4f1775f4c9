"""Ten hostile callers at two replicas: what an honest caller and the replicas notice of them.

just soak hostile [MEGABYTES] [--rounds N] [--seconds S] [--pace FACTOR]

Its own lab. A log of short lines (1 GB) is stored. Ten niced processes of four people and of
strangers ask at a stated pace: greps, huge pages, slow headers and bodies, public routes, tickets,
submits with a slow profile (`bench.soak.hostile_callers`). Meanwhile someone else asks `whoami` and
`status`, and types at a terminal in her job. Rounds take turns: in a control round the same
processes ask two plain file servers for as much. The goals: the p99 of the honest caller is at most
3 times that of the control rounds, a replica's memory stays within 256 MiB above rest, and no turn
of its event loop lasts more than 0.1 s. With 1 GB and five rounds it takes a quarter of an hour;
try it with 50 first. Needs root and a quiet machine.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import FrameType
from typing import Any

from bench.attach_terminals import echoes_ms
from bench.figures import Figure, load, say
from bench.soak.hostile_lab import (
    HONEST,
    Watch,
    honest_terminal,
    running_job,
    slow_profile,
    stored_log,
)
from bench.soak.orders import RoomPart
from lab.addresses import SERVER_ADDRESSES, SERVER_REST_PORT
from lab.certificates import SERVER_NAMES, Authority
from lab.laboratory import Lab
from lab.screen import Screen
from tests.e2e.own_figures import longest_pause_s
from tests.e2e.people import Person
from tests.eventually import eventually

_NAME = "hostile"
_PARTS = ("slurm", "oidc", "etcd", "seaweedfs", "server", "agents")
CALLERS = (
    ("grep by lines", "alice"),
    ("grep by states", "bob"),
    ("grep for what is rare", "dave"),
    ("huge pages", "carol"),
    ("huge pages", "alice"),
    ("slow headers", None),
    ("slow bodies", "bob"),
    ("public routes", None),
    ("tickets", "dave"),
    ("submits with a slow profile", "carol"),
)
"""Each a process, and whose token it has; alice has written the log and shared it with the rest."""
_PEOPLE = ("alice", "bob", "carol", "dave")
_OPERATOR = "oscar"
_FILE_PORT = 8090
_FILE_BYTES = 8 * 1024 * 1024
"""An answer is at most so large; a page has 4 MiB of text."""
_TOKEN_S = 7200
_LONGEST_S = 3600
_KEY_EVERY_S = 0.04
_ECHO_S = 60.0
"""Keys that do not come back are counted as so late."""
_BEFORE_S, _AFTER_S = 2.0, 1.0
"""So much longer than the honest caller the hostile ones are at work."""
_ANSWER_S = 120.0
_SETTLE_S = 120.0
"""Until the longest pause of an event loop is none of before; it is that of up to two minutes."""
_FEWEST_ROUNDS = 2
_AT_MOST = 3.0
_MEMORY_MIB = 256.0
_PAUSE_S = 0.1


@dataclass
class Taken:
    """What was measured in the rounds of one kind: `rest`, `control` or `hostile`."""

    rounds: dict[str, list[list[float]]] = field(default_factory=lambda: defaultdict(list))
    """Milliseconds by what was asked, round by round."""
    failed: Counter[str] = field(default_factory=Counter)
    answers: list[Counter[str]] = field(default_factory=lambda: [Counter() for _ in CALLERS])
    received_bytes: list[int] = field(default_factory=lambda: [0] * len(CALLERS))
    pauses_s: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """The longest, by replica."""

    def all(self, what: str) -> list[float]:
        return [each for taken in self.rounds[what] for each in taken]


def p99(values: Sequence[float]) -> float:
    return statistics.quantiles(values, n=100)[98]


class Site:
    """The lab with everybody in it."""

    def __init__(self, lab: Lab, watch: Watch, seconds: float) -> None:
        self.lab = lab
        self.watch = watch
        self.seconds = seconds
        self.operator = Person(lab, _OPERATOR).logged_in("operator")
        self.callers: list[RoomPart] = []
        self.honest: RoomPart
        self.screen: Screen

    def round(self, kind: str, taken: Taken) -> None:
        """One, counted in."""
        at_work_s = self.seconds + _BEFORE_S + _AFTER_S
        self.watch.phase = kind
        asked = self.callers if kind != "rest" else []
        for caller in asked:
            caller.tell(f"{kind} {at_work_s}")
        time.sleep(_BEFORE_S)
        self.honest.tell(str(self.seconds))
        # What came between rounds is no echo.
        self.screen.settle(0.1)
        keys = int(self.seconds / _KEY_EVERY_S)
        try:
            typed = echoes_ms(self.screen, keys, every_s=_KEY_EVERY_S, patience_s=_ECHO_S)
        except AssertionError as lost:
            print(f"{kind}: {lost}", file=sys.stderr)
            taken.failed["terminal echo"] += 1
            typed = [_ECHO_S * 1000] * keys
        taken.rounds["terminal echo"].append(typed)
        found = self.honest.answer(self.seconds + _ANSWER_S)
        for what, took_ms in found["took_ms"].items():
            taken.rounds[what].append(took_ms)
        taken.failed.update(found["failed"])
        for number, caller in enumerate(asked):
            got = caller.answer(at_work_s + _ANSWER_S)
            taken.answers[number].update(got["answers"])
            taken.received_bytes[number] += got["received_bytes"]
        for server in self.lab.servers:
            pause_s = longest_pause_s(self.lab, server, self.operator)
            taken.pauses_s[server.name] = max(taken.pauses_s[server.name], pause_s)
        late = {what: round(p99(each[-1]), 2) for what, each in taken.rounds.items()}
        print(f"{kind}: p99 {late} ms, load {load()}", file=sys.stderr, flush=True)


@contextmanager
def _file_servers(lab: Lab) -> Iterator[str]:
    """One beside each replica; their addresses."""
    folder = lab.layout.certificates
    leaf = Authority.load(folder).issue("plain", "plain", names=SERVER_NAMES, owner="root")
    file = lab.layout.state / "plain"
    file.write_bytes(os.urandom(_FILE_BYTES))
    words = (str(file), str(leaf.certificate), str(leaf.key))
    with ExitStack() as stack:
        for address in SERVER_ADDRESSES:
            module = ("bench.soak.file_server", address, str(_FILE_PORT))
            stack.callback(RoomPart(lab.control.room, *module, *words).end)
            eventually(partial(lab.network.accepts, _FILE_PORT, address))
        yield ",".join(f"{address}:{_FILE_PORT}" for address in SERVER_ADDRESSES)


@contextmanager
def _site(lab: Lab, size_bytes: int, seconds: float, pace: float) -> Iterator[Site]:
    with ExitStack() as stack:
        honest = Person(lab, HONEST).logged_in()
        hers = running_job(lab, honest)
        watch = stack.enter_context(Watch(lab.servers).running())
        site = Site(lab, watch, seconds)
        people = {name: Person(lab, name).logged_in() for name in _PEOPLE}
        jobs = {
            "grep": str(stored_log(lab, people["alice"], size_bytes, watch)),
            "tickets": str(running_job(lab, people["dave"])),
        }
        shared = [word for name in _PEOPLE[1:] for word in ("--with", name)]
        said = people["alice"].tries("share", jobs["grep"], *shared)
        assert said.code == 0, said
        stack.enter_context(slow_profile(lab, "carol"))
        plain = stack.enter_context(_file_servers(lab))
        replicas = ",".join(f"{each.address}:{SERVER_REST_PORT}" for each in lab.servers)
        authority = str(lab.layout.certificates / "ca.crt")
        for role, name in CALLERS:
            words = (role, jobs.get(role, jobs["grep"]), replicas, plain, authority, str(pace))
            env = people[name].bearer if name else {}
            module = "bench.soak.hostile_callers"
            part = RoomPart(lab.control.room, module, *words, env=env, nice=True)
            stack.callback(part.end)
            site.callers.append(part)
        module = "bench.soak.hostile_honest"
        asking = (lab.control.room, module, str(hers), replicas, authority)
        site.honest = RoomPart(*asking, env=honest.bearer)
        stack.callback(site.honest.end)
        site.screen = stack.enter_context(honest_terminal(honest, hers))
        yield site


def soak(lab: Lab, size_bytes: int, rounds: int, seconds: float, pace: float) -> bool:
    with _site(lab, size_bytes, seconds, pace) as site:
        site.watch.phase = "settling"
        time.sleep(_SETTLE_S)
        rest, before, control, hostile = Taken(), Taken(), Taken(), Taken()
        site.round("rest", rest)
        # With the rates as stated: later ones repeat what the hostile rounds came to.
        site.round("control", before)
        for _ in range(rounds):
            site.round("hostile", hostile)
            site.round("control", control)
        watch = site.watch
    ok = [
        *(_answered(what, rest, control, hostile) for what in sorted(hostile.rounds)),
        *(_remembered(name, watch) for name in watch.rest_kb),
        *(_paused(name, rest, before, hostile, control) for name in hostile.pauses_s),
        *(_attacked(number, seconds * rounds, control, hostile) for number in range(len(CALLERS))),
    ]
    return all(ok)


def _answered(what: str, rest: Taken, control: Taken, hostile: Taken) -> bool:
    value, bare = p99(hostile.all(what)), p99(control.all(what))
    low, _, high = statistics.quantiles(map(p99, hostile.rounds[what]), n=4)
    ratio, failed = value / bare, hostile.failed[what]
    ok = ratio <= _AT_MOST and not failed
    name = f"{what} p99 beside ten hostile callers, file servers asked instead"
    return _print(
        Figure(
            name=name, value=round(value, 2), unit="ms", low=round(low, 2), high=round(high, 2),
            bare=round(bare, 2), ratio=round(ratio, 2), goal=_AT_MOST, ok=ok,
        ),
        samples=len(hostile.all(what)),
        bare_samples=len(control.all(what)),
        p50=round(statistics.median(hostile.all(what)), 2),
        bare_p50=round(statistics.median(control.all(what)), 2),
        rest_p99=round(p99(rest.all(what)), 2),
        worst=round(max(hostile.all(what)), 2),
        failed=failed,
    )  # fmt: skip


def _remembered(name: str, watch: Watch) -> bool:
    rest_kb = watch.rest_kb[name]
    above = {phase: round((most[name] - rest_kb) / 1024, 1) for phase, most in watch.most.items()}
    value, goal = max(above.values()), _MEMORY_MIB
    ok = value <= goal and name not in watch.ended
    bare = round(rest_kb / 1024, 1)
    figure = Figure(
        name=f"memory of {name} above rest", value=value, unit="MiB", bare=bare, goal=goal, ok=ok
    )
    return _print(figure, above_in_mib=above, ended=name in watch.ended)


def _paused(name: str, rest: Taken, before: Taken, *attacked: Taken) -> bool:
    # A control round is in the same two minutes as the hostile one before it.
    value, bare = max(each.pauses_s[name] for each in attacked), before.pauses_s[name]
    figure = Figure(
        name=f"longest pause of the event loop of {name}",
        value=round(value, 4),
        unit="s",
        bare=round(bare, 4),
        ratio=round(value / bare, 2) if bare else None,
        goal=_PAUSE_S,
        ok=value <= _PAUSE_S,
    )
    return _print(figure, rest=round(rest.pauses_s[name], 4))


def _attacked(number: int, seconds: float, control: Taken, hostile: Taken) -> bool:
    """That the attack was real, and the control like it."""
    role, name = CALLERS[number]
    count, bare = hostile.answers[number].total(), control.answers[number].total()
    figure = Figure(
        name=f"answers to a hostile caller: {role}, {name or 'a stranger'}",
        value=count,
        unit="answers",
        bare=bare,
        ratio=round(count / bare, 2) if bare else None,
        ok=count > 0 and set(hostile.answers[number]) != {"lost"},
    )
    return _print(
        figure,
        per_second=round(count / seconds, 2),
        answers=dict(sorted(hostile.answers[number].items())),
        bare_answers=dict(sorted(control.answers[number].items())),
        received_mb=round(hostile.received_bytes[number] / 1e6, 1),
        bare_received_mb=round(control.received_bytes[number] / 1e6, 1),
    )


def _print(figure: Figure, **facts: Any) -> bool:
    figure.print(**facts)
    return figure.ok is not False


def _too_late(_number: int, _frame: FrameType | None) -> None:
    raise TimeoutError(f"not done after {_LONGEST_S} s")


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.soak.hostile", description=__doc__)
    parser.add_argument("megabytes", nargs="?", type=int, default=1000, help="of the log")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=25.0, help="of a round")
    parser.add_argument("--pace", type=float, default=1.0, help="times the stated rates")
    asked = parser.parse_args()
    if asked.rounds < _FEWEST_ROUNDS:
        parser.error(f"--rounds: at least {_FEWEST_ROUNDS}")
    # A background job of a shell ignores SIGINT; and a kill is to leave no lab behind either.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    signal.signal(signal.SIGALRM, _too_late)
    signal.alarm(_LONGEST_S)
    lab = Lab(_NAME, parts=_PARTS, servers=2, access_token_ttl_s=_TOKEN_S)
    begun = time.monotonic()
    try:
        lab.up()
        ok = soak(lab, asked.megabytes * 10**6, asked.rounds, asked.seconds, asked.pace)
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):
            signal.signal(number, signal.SIG_IGN)
        lab.down(purge=True)
    say({"name": "seconds of the soak", "value": round(time.monotonic() - begun, 1), "unit": "s"})
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
