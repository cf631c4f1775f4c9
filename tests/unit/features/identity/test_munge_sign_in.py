"""Whom a MUNGE credential signs in, and what is refused."""

from __future__ import annotations

from datetime import timedelta

import pytest

from lattice.access.tokens import REFUSED, TokenRefused
from lattice.base.errors import UsageError
from lattice.domain.munge_claim import MungeClaim
from lattice.domain.peer import BadName
from lattice.features.identity.model import AuthDiscovery
from lattice.features.identity.service import IdentityService, MungeSignIn
from tests.fakes.in_memory_scheduler import InMemoryScheduler
from tests.fakes.manual_clock import ManualClock


class Reader:
    """Decodes a credential that is written `USER:TEXT`."""

    async def read(self, credential: str) -> tuple[str, str]:
        user, _, text = credential.partition(":")
        if user == "replayed":
            raise ValueError("MUNGE credential with status 17")
        return user, text


class Issuer:
    audience = "lab-1"
    lifetime = timedelta(hours=12)

    def issue(self, user: str) -> str:
        return f"token of {user}"


def sign_in() -> MungeSignIn:
    return MungeSignIn(Reader(), Issuer(), lambda host: host == "login.example")


@pytest.mark.spec("TRY-4")
@pytest.mark.threat("munge-key")
@pytest.mark.parametrize(
    "credential",
    [
        "replayed:lattice sign-in 1 lab-1 login.example",
        "alice:",
        "alice:a message of Slurm",
        "alice:lattice sign-in 1 lab-2 login.example",
        "alice:lattice sign-in 1 lab-1 evil.example",
        "alice:lattice sign-in 1 lab-1 login.example\n",
        "alice:lattice sign-in 1 lab-1 login.example more",
    ],
)
async def test_what_was_not_made_for_this_server_is_refused(credential: str) -> None:
    with pytest.raises(TokenRefused) as refusal:
        await sign_in().sign_in(credential)
    assert refusal.value.message == REFUSED
    assert "evil" not in f"{refusal.value.message} {refusal.value.hint}"


@pytest.mark.spec("TRY-4")
async def test_the_user_of_the_credential_is_signed_in() -> None:
    made = await sign_in().sign_in(f"alice:{MungeClaim('lab-1', 'login.example')}")
    assert (made.user, made.token, made.lifetime_s) == ("alice", "token of alice", 43200)
    assert "token of" not in repr(made)


@pytest.mark.spec("TRY-4")
async def test_a_site_that_does_not_offer_it() -> None:
    nothing = AuthDiscovery(idp_url="", client_id="", issuer="")
    service = IdentityService(InMemoryScheduler(ManualClock()), nothing)
    assert (await service.discovery()).munge == ""
    with pytest.raises(UsageError, match="offers no signing in by MUNGE"):
        await service.sign_in_by_munge("alice:x")


@pytest.mark.spec("TRY-4")
@pytest.mark.parametrize("cluster", ["", "a b", "../x", "x" * 60, "Ü"])
def test_a_server_can_not_choose_what_is_signed(cluster: str) -> None:
    with pytest.raises(BadName):
        str(MungeClaim(cluster, "host"))
