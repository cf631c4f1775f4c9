"""What the root helper reads from the agent, and the agent from the helper.

The first byte says what the rest is; see `_READERS`. `@GRANT@` stands for a grant that is valid for
`CANCEL` at the gate, `@NODE@` for one that is valid for `OPEN` on the node.

- Any bytes give a value or the documented refusal; nothing else escapes.
- No question passes the judge without a grant for its very words, and none passes twice.
- Only plain UTF-8 JSON is taken: no name twice, no `NaN`, no number beyond its bounds.
- What is read is written again as the same value.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Iterable
from dataclasses import asdict
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lattice.access.grants import GrantSigner
from lattice.base.signatures import SigningKey
from lattice.domain import grant, signedtime
from lattice.domain.counters import (
    MOST_JOBS,
    MOST_WANTED,
    BadTelling,
    CounterAnswer,
    namespaces_of,
    processes_of,
    read_asking,
    read_telling,
    write_telling,
)
from lattice.domain.grant import GATE, Act, BadGrant
from lattice.domain.latency import timings_of
from lattice.domain.pipe import BadFrame, Pipe
from lattice.domain.privileged import (
    VERBS,
    BadQuestion,
    HelperRole,
    OpenOutput,
    Question,
    digest_of,
    read_answer,
    read_request,
    write_answer,
    write_request,
)
from lattice.domain.probed import (
    BadProbe,
    read_mounts,
    read_stacks,
    read_tasks,
    write_mounts,
    write_reports,
)
from lattice.domain.submission import CancelQuestion
from lattice.domain.terminal import BadMessage, read_message, write_message
from lattice.helper.judge import AskedGrant, GrantJudge, Refusal, claim_of
from lattice.helper.trusted_clock import ProvenClock
from tests.fakes.manual_clock import ManualClock

CANCEL = CancelQuestion(jobs=("7",))
OPEN = OpenOutput((11,))
NODE = "n1"
TOKENS = (
    b'{"grant":"","question":{},"verb":"challenge"}',
    b'"grant":"@GRANT@"',
    b'"grant":"@NODE@"',
    b'"verb":"cancel"',
    b'"verb":"submit"',
    b'"verb":"enter"',
    b'"verb":"open_output"',
    b'"verb":"watch_counters"',
    b'"question":{"jobs":["7"]}',
    b'"question":{"pids":[11]}',
    b'"grant":"",',
    b'{"want":["io","network"],"jobs":[42,43]}',
    b'"told":{"io":{"42":[[311,1280,0,4096,8192,1,2]]}}',
    b'"failed":{},"more":false}',
    b'"outcome":"done"',
    b'"frames":[]',
    b'"cpu_seconds":',
    b"NaN",
    b"-Infinity",
    b"1e999",
    b"9" * 400,
    b"-1",
    b"true",
    b"null",
    b"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[",
    b'{"a":' * 8,
    b"\\ud800",
    b"\\u0000",
    b"\xed\xa0\x80",
    b"\xef\xbb\xbf",
    b"\x00",
)
_TIMING = [[0] * 58]


def seeds() -> Iterable[bytes]:
    yield b"Q" + write_request("@GRANT@", CANCEL)
    yield b"Q" + write_request("@NODE@", OPEN)
    yield b'Q{"grant":"@GRANT@","grant":"","question":{"jobs":["7"]},"verb":"cancel"}'
    for name in ("challenge", "watch_counters", "read_tasks"):
        yield b'Q{"grant":"","question":{},"verb":"%s"}' % name.encode()
    yield b'Q{"grant":"","question":{"job_id":7,"pids":[1,2]},"verb":"note_output"}'
    yield "Q{}".encode("utf-16")
    yield b'A{"exit_code":0,"message":"m","notes":["n"],"outcome":"done","output":"o"}'
    yield b'K{"want":["io","network"],"jobs":[42,43]}'
    yield b'K{"want":["io"],"jobs":[42],"jobs":[43]}'
    yield (
        b'T{"told":{"io":{"42":[[311,1280,0,4096,8192,1,2],[5,6,7]]},"network":{"42":[[0]]},'
        b'"latency":{"42":%s}},"failed":{"x":"y"},"unread":{"43":"z"},"more":false}'
        % json.dumps(_TIMING).encode()
    )
    yield (
        b'M{"mounts":[{"path":"/h","kind":"nfs","source":"f:/h","answered_s":0.5,"waited_s":null,'
        b'"trouble":""}],"statistics":"","unlooked":""}'
    )
    yield (
        b'P[{"pid":1,"step":"0","rank":0,"state":"R","waits_in":"","cpu_seconds":1.5,"age_s":2,'
        b'"command":"x","python_unbuffered":true,"output_piped":null}]'
    )
    yield (
        b'S[{"pid":1,"rank":0,"language":"python","frames":[],"state":"R","waits_in":"",'
        b'"trouble":"","command":"x"}]'
    )
    yield b"m\x00typed"
    yield b"m\x02\x00\x18\x00\x50"
    yield b"m\x03INT"
    yield (
        b'm\x10{"node":"n","user":"u","step":"0","pid":5,"directory":"/","accounted":true,'
        b'"warnings":["w"]}'
    )
    yield b'm\x13{"cause":"exited","code":0,"words":""}'
    yield b"f\x11" + b"\x00" * 17 + b"\x14\x01" + b"\x00" * 7 + b"\x01" + b"\x00" * 8 + b"hi!"


def try_one(data: bytes) -> None:
    check = _READERS.get(data[:1])
    if check is not None:
        check(data[1:])


class _Court:
    """A judge at the gate and one on a node, and a server whose key both know."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        key = SigningKey.generate()
        self.signer = GrantSigner(key, self.clock)
        self._folder = TemporaryDirectory()
        keys = Path(self._folder.name) / "keys"
        keys.write_text(base64.b64encode(key.public).decode())
        self.judges = [
            self._judge(HelperRole.GATE, GATE, keys),
            self._judge(HelperRole.NODE, NODE, keys),
        ]
        self.clock.advance(2)

    def _judge(self, role: HelperRole, place: str, keys: Path) -> GrantJudge:
        offered = [name for name, verb in VERBS.items() if verb.role is role]
        clock = ProvenClock(self.clock)
        return GrantJudge(
            role=role, location=place, allowed_uid=1, keys_file=keys, offered=offered, clock=clock
        )

    def grant(self, act: Act, place: str, question: Question) -> str:
        return self.signer.issue(act, place, subject="s", user="u", digest=digest_of(question))


_court = cache(_Court)


def _question(data: bytes) -> None:
    court = _court()
    granted: dict[str, tuple[Act, Question]] = {}
    for mark, act, place, question in (
        (b"@GRANT@", Act.CANCEL, GATE, CANCEL),
        (b"@NODE@", Act.READ_OUTPUT, NODE, OPEN),
    ):
        if mark in data:
            text = court.grant(act, place, question)
            granted[text] = act, question
            data = data.replace(mark, text.encode())
        if len(court.judges[0]._checker._used) > 10_000:
            _court.cache_clear()
    claim_of(data)
    for judge in court.judges:
        try:
            asked = judge.judge(data)
        except Refusal:
            continue
        _check_asked(asked, data, granted)
        if asked.grant is not None:
            try:
                judge.judge(data)
            except Refusal:
                pass
            else:
                raise AssertionError("a grant was used twice")
        try:
            judge.answered(asked)
        except Refusal:
            continue


def _check_asked(asked: AskedGrant, data: bytes, granted: dict[str, tuple[Act, Question]]) -> None:
    told = _plain_json(data)
    text = told["grant"]
    if asked.verb.granted:
        assert text in granted, "a question passed without a grant"
        assert (asked.verb.act, asked.question) == granted[text], "a question of other words passed"
        assert asked.grant is not None
    else:
        assert text == ""
        assert asked.grant is None
    assert read_request(write_request(text, asked.question)) == (text, asked.verb, asked.question)
    assert json.loads(json.dumps(told["question"])) == json.loads(
        json.dumps(asdict(asked.question))
    )


def _plain_json(data: bytes) -> Any:
    """As JSON in UTF-8, with no name twice and no number that is none."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        assert len(dict(pairs)) == len(pairs), "a name stands twice"
        return dict(pairs)

    def never(word: str) -> float:
        raise AssertionError(f"{word} was taken for a number")

    return json.loads(data.decode(), object_pairs_hook=once, parse_constant=never)


def _answer(data: bytes) -> None:
    try:
        answer = read_answer(data)
    except BadQuestion:
        return
    _plain_json(data)
    assert read_answer(write_answer(answer)) == answer


def _asking(data: bytes) -> None:
    try:
        asking = read_asking(data)
    except BadTelling:
        return
    _plain_json(data)
    assert 0 < len(asking.jobs) <= MOST_JOBS
    assert 0 < len(asking.want) <= MOST_WANTED
    assert read_asking(asking.written()) == asking


def _telling(data: bytes) -> None:
    telling = CounterAnswer()
    try:
        read_telling(data, telling)
    except BadTelling:
        return
    _plain_json(data)
    again = CounterAnswer()
    for each in write_telling(telling):
        read_telling(each, again)
    assert again == telling
    for kind in telling.rows:
        for rows in telling.rows[kind].values():
            _rows(rows)


def _rows(rows: list[Any]) -> None:
    for read in (processes_of, namespaces_of):
        try:
            read(rows)
        except BadTelling:
            continue
    try:
        timings_of(rows)
    except ValueError:
        return


def _mounts(data: bytes) -> None:
    try:
        look = read_mounts(data)
    except BadProbe:
        return
    _plain_json(data)
    assert read_mounts(write_mounts(look)) == look
    for each in look.mounts:
        for amount in (each.answered_s, each.waited_s):
            assert amount is None or (math.isfinite(amount) and amount >= 0)


def _tasks(data: bytes) -> None:
    try:
        looks = read_tasks(data)
    except BadProbe:
        return
    _plain_json(data)
    assert read_tasks(write_reports(looks)) == looks


def _stacks(data: bytes) -> None:
    try:
        looks = read_stacks(data)
    except BadProbe:
        return
    _plain_json(data)
    assert read_stacks(write_reports(looks)) == looks


def _terminal(data: bytes) -> None:
    try:
        message = read_message(data)
    except BadMessage:
        return
    assert read_message(write_message(message)) == message


def _pipe(data: bytes) -> None:
    """Frames, each after a byte with its length: they come in order and fit the window."""
    pipe = Pipe()
    pipe.connected()
    pipe.frames()
    taken, sent, at = b"", b"", 0
    while at < len(data):
        frame = data[at + 1 : at + 1 + data[at]]
        at += 1 + data[at]
        try:
            pipe.receive(frame)
        except BadFrame:
            break
        if frame[:1] in (b"\x01", b"\x03"):
            sent += frame[17:]
        while (message := pipe.take()) is not None:
            taken += message.payload
        pipe.frames()
    assert taken == sent
    assert pipe.delivered


def _grant(data: bytes) -> None:
    for read, error in (
        (grant.read_payload, BadGrant),
        (signedtime.read_payload, signedtime.BadTime),
    ):
        try:
            told = read(data)
        except error:
            continue
        assert read(told.payload()) == told
    text = data.decode("utf-8", "replace")
    try:
        key, payload, signature = grant.read_written(text)
    except BadGrant:
        return
    assert grant.written(key, payload, signature) == text


_READERS: dict[bytes, Callable[[bytes], None]] = {
    b"Q": _question,
    b"A": _answer,
    b"K": _asking,
    b"T": _telling,
    b"M": _mounts,
    b"P": _tasks,
    b"S": _stacks,
    b"m": _terminal,
    b"f": _pipe,
    b"G": _grant,
}
