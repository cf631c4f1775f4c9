"""Whom a Slurm token signs in, for how long, and what is not written down."""

from __future__ import annotations

import logging

import pytest

from lattice.access.tokens import REFUSED, TokenRefused
from lattice.base.errors import RateLimited, Unavailable, UsageError
from lattice.features.identity.model import AuthDiscovery
from lattice.features.identity.operations import SlurmToken
from lattice.features.identity.service.identity import IdentityService
from lattice.features.identity.service.slurm_token import SlurmSignIn
from tests.fakes.in_memory_scheduler import InMemoryScheduler
from tests.fakes.manual_clock import ManualClock

NODE = "10.1.0.7"
NOTHING = AuthDiscovery(idp_url="", client_id="", issuer="")


class Judge:
    """Tokens are written `USER:END`."""

    async def judge(self, token: str) -> tuple[str, int]:
        user, _, end = token.partition(":")
        if user == "mallory":
            raise ValueError("Slurm refused a token for mallory")
        if user == "away":
            raise Unavailable("slurmrestd gave no answer.")
        return user, int(end)


class Issuer:
    audience = "lab-1"

    def issue(self, user: str, origin: str, end: int | None = None) -> tuple[str, int]:
        assert origin == "slurm"
        assert end is not None
        return f"own of {user}", min(43_200, max(0, end - 1000))


def sign_in() -> SlurmSignIn:
    return SlurmSignIn(Judge(), Issuer(), ManualClock())


@pytest.mark.spec("TRY-4")
@pytest.mark.parametrize(("end", "lifetime_s"), [(1300, 300), (999_999, 43_200)])
async def test_the_sign_in_ends_with_the_token_or_before(end: int, lifetime_s: int) -> None:
    made = await sign_in().sign_in(f"alice:{end}", NODE)
    assert (made.user, made.token, made.lifetime_s) == ("alice", "own of alice", lifetime_s)


@pytest.mark.spec("TRY-4")
@pytest.mark.threat("slurm-token")
@pytest.mark.parametrize("token", ["mallory:9999", "alice:1000", "alice:0"])
async def test_every_refusal_is_the_same_to_the_caller(
    token: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO), pytest.raises(TokenRefused) as refusal:
        await sign_in().sign_in(token, NODE)
    assert refusal.value.message == REFUSED
    assert "mallory" not in f"{refusal.value.message} {refusal.value.hint}"
    assert [each.message for each in caplog.records] == ["sign-in by a slurm token refused"]


@pytest.mark.spec("TRY-4")
@pytest.mark.threat("slurm-token")
async def test_the_token_is_shown_nowhere(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        made = await sign_in().sign_in("alice:54321", NODE)
    assert "own of" not in repr(made)
    assert "54321" not in "".join(str(each.__dict__) for each in caplog.records)
    assert "54321" not in repr(SlurmToken(token="alice:54321"))


@pytest.mark.spec("TRY-4")
async def test_nobody_is_refused_for_a_slurm_that_does_not_answer() -> None:
    with pytest.raises(Unavailable):
        await sign_in().sign_in("away:0", NODE)


@pytest.mark.spec("TRY-4")
async def test_a_site_that_does_not_offer_it() -> None:
    scheduler = InMemoryScheduler(ManualClock())
    service = IdentityService(scheduler, NOTHING)
    assert (await service.discovery()).slurm == ""
    with pytest.raises(UsageError, match="offers no signing in by Slurm tokens"):
        await service.sign_in_by_slurm_token("alice:9999", NODE)
    offered = IdentityService(scheduler, NOTHING, slurm=sign_in())
    assert (await offered.discovery()).slurm == "lab-1"
    assert (await offered.discovery()).munge == ""


@pytest.mark.spec("TRY-4")
@pytest.mark.threat("slurm-token")
async def test_an_address_that_tries_without_end_is_slowed_down() -> None:
    signing = sign_in()
    for _ in range(300):
        with pytest.raises(TokenRefused):
            await signing.sign_in("mallory:1", NODE)
    with pytest.raises(RateLimited, match=f"from {NODE}: 300 a minute"):
        await signing.sign_in("mallory:1", NODE)
    assert (await signing.sign_in("alice:9999", "10.1.0.8")).user == "alice"
