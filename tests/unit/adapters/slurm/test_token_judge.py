"""What is asked of slurmrestd about a token, and what its answers mean."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from lattice.adapters.slurm.http_client import RestReply
from lattice.adapters.slurm.rest import TOKEN_HEADER, USER_HEADER, SlurmRest
from lattice.adapters.slurm.token_judge import (
    NO_TOKEN,
    NOBODY,
    BadSlurmToken,
    SlurmClaims,
    SlurmTokenJudge,
)
from lattice.base.errors import RateLimited, Unavailable
from tests.fakes.judging_slurmrestd import PATH, JudgingSlurmrestd, slurm_token
from tests.fakes.manual_clock import ManualClock

KEY = b"the key of Slurm, or what is so."
Answer = Callable[[Mapping[str, str]], RestReply]


class Room:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.now = int(self.clock.now().timestamp())
        self.restd = JudgingSlurmrestd(KEY, self.now)
        rest = SlurmRest("unix:/fake", user=NOBODY, token=NO_TOKEN, exchange=self.restd)
        self.judge = SlurmTokenJudge(rest, self.clock)

    def token(self, **claims: Any) -> str:
        return slurm_token(KEY, {"exp": self.now + 600, "sun": "alice"} | claims)

    def answer_licenses(self, answer: Answer) -> None:
        real = self.restd.get

        async def get(target: str, headers: Mapping[str, str], limit_bytes: int) -> RestReply:
            if target.endswith("licenses") and TOKEN_HEADER in headers:
                return answer(headers)
            return await real(target, headers, limit_bytes)

        self.restd.get = get  # type: ignore[method-assign]


@pytest.fixture
def room() -> Room:
    return Room()


@pytest.mark.spec("TRY-4")
async def test_three_questions_with_the_token_in_two_of_them(room: Room) -> None:
    token = room.token()
    assert await room.judge.judge(token) == ("alice", room.now + 600)
    listing, *asked = room.restd.asked
    assert listing[1][TOKEN_HEADER] == NO_TOKEN
    assert [target for target, _ in asked] == [f"{PATH}licenses"] * 3
    callers = [(each.get(USER_HEADER), each.get(TOKEN_HEADER)) for _, each in asked]
    assert callers == [("alice", None), ("alice", token), (NOBODY, token)]


@pytest.mark.spec("TRY-4")
@pytest.mark.threat("slurm-token")
@pytest.mark.parametrize(
    "claims",
    [{"sun": "root"}, {"sun": "nobody"}, {"sun": "1000"}, {"sun": ""}, {"sun": None}, {"exp": 0}],
)
async def test_what_is_seen_at_once_never_reaches_slurm(room: Room, claims: dict[str, Any]) -> None:
    with pytest.raises(BadSlurmToken):
        await room.judge.judge(room.token(**claims))
    assert room.restd.asked == []


@pytest.mark.spec("TRY-4")
@pytest.mark.threat("slurm-token")
@pytest.mark.parametrize(
    "text",
    ["", ".", "..", "a.b.c", "a.b", "é.é.é", "x" * 5000, "SLURM_JWT=a.b.c", "a.b.c\r\nX: y", "a b"],
)
def test_text_of_another_form(text: str) -> None:
    with pytest.raises(BadSlurmToken, match="not the form") as refusal:
        SlurmClaims.parse(text)
    assert str(refusal.value) == "not the form of a Slurm token"


@pytest.mark.spec("TRY-4")
def test_each_changed_character_of_the_form(room: Room) -> None:
    # Whatever it becomes, it is refused here or claims something that only Slurm can judge.
    token = room.token()
    for index in range(len(token)):
        for other in "A.=\n ":
            changed = token[:index] + other + token[index + 1 :]
            try:
                found = SlurmClaims.parse(changed)
            except BadSlurmToken:
                continue
            assert found.user.isascii()
            assert "\n" not in changed
            assert " " not in changed


@pytest.mark.spec("TRY-4")
@pytest.mark.threat("slurm-token")
async def test_a_proxy_that_lets_every_token_pass(room: Room) -> None:
    # It asks as SlurmUser whatever it is given, so it would answer as anybody.
    room.answer_licenses(lambda _: RestReply(200, b'{"licenses": [], "errors": []}'))
    with pytest.raises(BadSlurmToken, match="speaks for others"):
        await room.judge.judge(slurm_token(b"any", {"exp": room.now + 600, "sun": "alice"}))


@pytest.mark.spec("TRY-4")
@pytest.mark.threat("slurm-token")
async def test_local_authentication_is_found_though_slurmctld_goes_down_in_between(
    room: Room,
) -> None:
    room.restd.is_local = True
    forged = slurm_token(b"any", {"exp": room.now + 600, "sun": "alice"})

    def first_good_then_lost(headers: Mapping[str, str]) -> RestReply:
        if headers[USER_HEADER] == "alice":
            return RestReply(200, b'{"licenses": [], "errors": []}')
        raise TimeoutError

    room.answer_licenses(first_good_then_lost)
    with pytest.raises(Unavailable, match="answers without a token"):
        await room.judge.judge(forged)


@pytest.mark.spec("TRY-4")
@pytest.mark.threat("slurm-token")
async def test_local_authentication_that_answers_one_name_alone(room: Room) -> None:
    # So it does for a server that runs as root: the name of slurmrestd's own user is enough.
    real = room.restd.get

    async def get(target: str, headers: Mapping[str, str], limit_bytes: int) -> RestReply:
        if headers.get(USER_HEADER) == "lattice":
            return RestReply(200, b'{"licenses": [], "errors": []}')
        return await real(target, headers, limit_bytes)

    room.restd.get = get  # type: ignore[method-assign]
    forged = slurm_token(b"any", {"exp": room.now + 600, "sun": "lattice"})
    with pytest.raises(Unavailable, match="answers without a token"):
        await room.judge.judge(forged)


@pytest.mark.spec("TRY-4")
@pytest.mark.parametrize(
    ("status", "body"),
    [
        (500, {"errors": [{"error_number": 1800, "error": "Unable to contact slurm controller"}]}),
        (200, {"errors": [{"error_number": 2018, "error": "?"}], "licenses": []}),
        (200, {"errors": []}),
        (200, {"licenses": None}),
        (204, {}),
        (404, {"errors": []}),
        (502, {"errors": []}),
        (302, {}),
        (200, ["licenses"]),
        (200, "<html>signed in</html>"),
    ],
)
async def test_an_answer_that_is_neither_yes_nor_no(room: Room, status: int, body: Any) -> None:
    raw = body.encode() if isinstance(body, str) else json.dumps(body).encode()
    room.answer_licenses(lambda _: RestReply(status, raw))
    with pytest.raises(Unavailable) as refusal:
        await room.judge.judge(room.token())
    assert room.token() not in f"{refusal.value.message} {refusal.value.hint}"


@pytest.mark.spec("TRY-4")
@pytest.mark.parametrize("status", [401, 403, 511])
async def test_a_refusal_by_its_status(room: Room, status: int) -> None:
    room.answer_licenses(lambda _: RestReply(status, b"Authentication failure"))
    with pytest.raises(BadSlurmToken, match="Slurm refused a token for alice"):
        await room.judge.judge(room.token())


@pytest.mark.spec("TRY-4")
async def test_a_slurmrestd_without_that_list(room: Room) -> None:
    room.restd.lists = ("jobs", "nodes", "diag")
    with pytest.raises(Unavailable, match="offers no licenses"):
        await room.judge.judge(room.token())


@pytest.mark.spec("OPS-8")
async def test_the_check_of_doctor_has_no_token(room: Room) -> None:
    assert await room.judge.check() == "unix:/fake"
    room.restd.is_local = True
    with pytest.raises(Unavailable, match="judges none") as refusal:
        await room.judge.check()
    assert "rest_auth/jwt" in str(refusal.value.hint)


@pytest.mark.spec("TRY-4")
@pytest.mark.threat("slurm-token")
async def test_a_hundred_wait_and_no_more(room: Room) -> None:
    answered = asyncio.Event()
    real = room.restd.get

    async def slow(target: str, headers: Mapping[str, str], limit_bytes: int) -> RestReply:
        await answered.wait()
        return await real(target, headers, limit_bytes)

    room.restd.get = slow  # type: ignore[method-assign]
    token = room.token()
    waiting = [asyncio.create_task(room.judge.judge(token)) for _ in range(100)]
    await asyncio.sleep(0)
    with pytest.raises(RateLimited):
        await room.judge.judge(token)
    answered.set()
    assert set(await asyncio.gather(*waiting)) == {("alice", room.now + 600)}
    assert (await room.judge.judge(token))[0] == "alice"
