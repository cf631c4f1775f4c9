"""Whose a Slurm token is, by slurmrestd and slurmctld: fakes of two releases, and the real ones."""

from __future__ import annotations

import asyncio
import os
import pwd
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from lab.laboratory import Lab
from lab.slurm_config import SlurmFiles
from lab.users import SERVER_USER
from lattice.adapters.slurm.rest import SlurmRest
from lattice.adapters.slurm.token_judge import NO_TOKEN, NOBODY, BadSlurmToken, SlurmTokenJudge
from lattice.base.clock import SystemClock
from lattice.base.errors import Unavailable
from tests.fakes.judging_slurmrestd import SLURM_USER, JudgingSlurmrestd, slurm_token

NOW = int(time.time())
END = NOW + 600
GOOD: dict[str, Any] = {"exp": END, "iat": NOW, "sun": "alice"}
OTHER_KEY = b"k" * 32


class FakeSite:
    key = b"the key of Slurm, or what is so."

    def __init__(self, release: str) -> None:
        self._restd = JudgingSlurmrestd(self.key, NOW, release=release)
        self._local = JudgingSlurmrestd(self.key, NOW, release=release)
        self._local.is_local = True
        self.judge = self._judge(self._restd)
        self.with_local = self._judge(self._local)

    def _judge(self, restd: JudgingSlurmrestd) -> SlurmTokenJudge:
        rest = SlurmRest("unix:/fake", user=NOBODY, token=NO_TOKEN, exchange=restd)
        return SlurmTokenJudge(rest, SystemClock())

    def by_scontrol(self, user: str) -> str:
        return slurm_token(self.key, GOOD | {"sun": user})

    @contextmanager
    def account(self) -> Iterator[None]:
        yield

    def stop_controller(self) -> None:
        self._restd.is_away = True

    def start_controller(self) -> None:
        self._restd.is_away = False

    async def aclose(self) -> None:
        pass


class RealSite:
    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        files = SlurmFiles(lab.layout.state)
        self.key = files.jwt_key.read_bytes()
        self._rests = [
            SlurmRest(f"unix:{socket}", user=NOBODY, token=NO_TOKEN)
            for socket in (files.rest_jwt_socket, files.rest_socket)
        ]
        self.judge, self.with_local = (SlurmTokenJudge(rest, SystemClock()) for rest in self._rests)

    def by_scontrol(self, user: str) -> str:
        return self._lab.slurm.token(user)

    @contextmanager
    def account(self) -> Iterator[None]:
        """As the server's own user, which is that of slurmrestd."""
        os.seteuid(pwd.getpwnam(SERVER_USER).pw_uid)
        try:
            yield
        finally:
            os.seteuid(0)

    def stop_controller(self) -> None:
        self._lab.slurm.ctld.freeze()

    def start_controller(self) -> None:
        self._lab.slurm.ctld.thaw()

    async def aclose(self) -> None:
        for rest in self._rests:
            await rest.aclose()


Site = FakeSite | RealSite


@pytest.fixture(params=["22.05", "26.05", pytest.param("slurm", marks=pytest.mark.lab)])
async def site(request: pytest.FixtureRequest) -> AsyncIterator[Site]:
    real = request.param == "slurm"
    found = RealSite(request.getfixturevalue("lab")) if real else FakeSite(request.param)
    yield found
    await found.aclose()


def _cut(token: str) -> str:
    return token[:-1]


def _other_body(token: str) -> str:
    head, _, signature = token.split(".")
    body = slurm_token(OTHER_KEY, GOOD | {"sun": "bob"}).split(".")[1]
    return f"{head}.{body}.{signature}"


def _no_signature(token: str) -> str:
    return token.rpartition(".")[0] + "."


@pytest.mark.spec("TRY-4")
async def test_a_token_is_its_users_alone(site: Site) -> None:
    for user in ("alice", "bob"):
        found, end = await site.judge.judge(site.by_scontrol(user))
        assert found == user
        assert NOW < end < NOW + 7200


@pytest.mark.spec("TRY-4")
@pytest.mark.threat("slurm-token")
@pytest.mark.parametrize(
    ("claims", "algorithm", "key"),
    [
        pytest.param(GOOD, "HS256", OTHER_KEY, id="other key"),
        pytest.param(GOOD, "none", None, id="unsigned"),
        pytest.param(GOOD, "HS384", None, id="HS384"),
        pytest.param(GOOD, "RS256", None, id="RS256"),
        pytest.param(GOOD | {"exp": NOW - 60}, "HS256", None, id="expired"),
        pytest.param(GOOD | {"exp": str(END)}, "HS256", None, id="end as text"),
        pytest.param(GOOD | {"exp": END + 0.5}, "HS256", None, id="end with a fraction"),
        pytest.param(GOOD | {"exp": None}, "HS256", None, id="no end"),
        pytest.param({"exp": END, "iat": NOW}, "HS256", None, id="no user"),
        pytest.param(
            {"exp": END, "iat": NOW, "username": "alice"},
            "HS256",
            None,
            id="user under another name",
        ),
        pytest.param(GOOD | {"sun": "root"}, "HS256", None, id="root"),
        pytest.param(GOOD | {"sun": SLURM_USER}, "HS256", None, id="SlurmUser"),
        pytest.param(GOOD | {"sun": NOBODY}, "HS256", None, id="nobody"),
        pytest.param(GOOD | {"sun": "0"}, "HS256", None, id="a uid"),
        pytest.param(GOOD | {"sun": ["alice"]}, "HS256", None, id="a list"),
        pytest.param(
            GOOD | {"sun": "alice\r\nX-SLURM-USER-NAME: root"}, "HS256", None, id="line break"
        ),
        pytest.param(
            f'{{"exp":{END},"sun":"alice","sun":"bob"}}'.encode(), "HS256", None, id="two users"
        ),
        pytest.param(
            f'{{"exp":{END},"sun":"alice"}} '.encode() + b"x", "HS256", None, id="more behind it"
        ),
    ],
)
async def test_what_slurm_refuses_and_tokens_that_are_not_a_persons(
    site: Site, claims: Any, algorithm: str, key: bytes | None
) -> None:
    with pytest.raises(BadSlurmToken) as refusal:
        await site.judge.judge(slurm_token(key or site.key, claims, algorithm))
    assert "eyJ" not in str(refusal.value)


@pytest.mark.spec("TRY-4")
@pytest.mark.threat("slurm-token")
@pytest.mark.parametrize("change", [_cut, _other_body, _no_signature])
async def test_a_changed_token_is_refused_after_the_good_one(
    site: Site, change: Callable[[str], str]
) -> None:
    # Over the same connections: none of them stays anybody's.
    good = site.by_scontrol("alice")
    for _ in range(3):
        assert (await site.judge.judge(good))[0] == "alice"
        with pytest.raises(BadSlurmToken):
            await site.judge.judge(change(good))


@pytest.mark.spec("TRY-4")
async def test_many_at_once_each_get_their_own_answer(site: Site) -> None:
    good = {user: site.by_scontrol(user) for user in ("alice", "bob")}
    forged = slurm_token(OTHER_KEY, GOOD)
    asked = [good["alice"], forged, good["bob"], forged] * 5
    found = await asyncio.gather(*map(site.judge.judge, asked), return_exceptions=True)
    users = [each[0] if isinstance(each, tuple) else type(each) for each in found]
    assert users == ["alice", BadSlurmToken, "bob", BadSlurmToken] * 5


@pytest.mark.spec("TRY-4")
@pytest.mark.threat("slurm-token")
async def test_a_slurmrestd_that_answers_without_a_token_judges_none(site: Site) -> None:
    forged = (slurm_token(OTHER_KEY, GOOD | {"sun": user}) for user in ("alice", SERVER_USER))
    for token in (site.by_scontrol("alice"), *forged):
        with site.account(), pytest.raises(Unavailable, match="answers without a token"):
            await site.with_local.judge(token)
        with pytest.raises(Unavailable):
            await site.with_local.judge(token)
    with site.account(), pytest.raises(Unavailable, match="judges none"):
        await site.with_local.check()
    assert (await site.judge.check()).startswith("unix:")


@pytest.mark.spec("TRY-4")
async def test_nobody_signs_in_while_slurmctld_is_away(site: Site) -> None:
    good = site.by_scontrol("alice")
    site.stop_controller()
    try:
        with pytest.raises(Unavailable):
            await site.judge.judge(good)
    finally:
        site.start_controller()
    assert (await site.judge.judge(good))[0] == "alice"
