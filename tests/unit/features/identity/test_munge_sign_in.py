"""Whom a MUNGE credential signs in, and what is refused."""

from __future__ import annotations

import pytest

from lattice.access.tokens import REFUSED, TokenRefused
from lattice.base.errors import RateLimited, UsageError
from lattice.domain.munge_claim import MungeClaim
from lattice.domain.peer import BadName
from lattice.features.identity.model import AuthDiscovery
from lattice.features.identity.service.identity import IdentityService
from lattice.features.identity.service.munge import MungeSignIn
from tests.fakes.in_memory_scheduler import InMemoryScheduler
from tests.fakes.manual_clock import ManualClock

NODE = "10.1.0.7"


class Reader:
    """Decodes a credential that is written `USER:TEXT`."""

    async def read(self, credential: str) -> tuple[str, str]:
        user, _, text = credential.partition(":")
        if user == "replayed":
            raise ValueError("MUNGE credential with status 17")
        return user, text


class Issuer:
    audience = "lab-1"

    def issue(self, user: str, origin: str, end: int | None = None) -> tuple[str, int]:
        assert (origin, end) == ("munge", None)
        return f"token of {user}", 43_200


def sign_in() -> MungeSignIn:
    here = {"login.example", "localhost", "127.0.0.1", "::1"}
    return MungeSignIn(Reader(), Issuer(), here.__contains__, ManualClock())


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
        await sign_in().sign_in(credential, NODE)
    assert refusal.value.message == REFUSED
    assert "evil" not in f"{refusal.value.message} {refusal.value.hint}"


@pytest.mark.spec("TRY-4")
async def test_the_user_of_the_credential_is_signed_in() -> None:
    made = await sign_in().sign_in(f"alice:{MungeClaim('lab-1', 'login.example')}", NODE)
    assert (made.user, made.token, made.lifetime_s) == ("alice", "token of alice", 43200)
    assert "token of" not in repr(made)


@pytest.mark.spec("TRY-4")
async def test_a_site_that_does_not_offer_it() -> None:
    nothing = AuthDiscovery(idp_url="", client_id="", issuer="")
    service = IdentityService(InMemoryScheduler(ManualClock()), nothing)
    assert (await service.discovery()).munge == ""
    with pytest.raises(UsageError, match="offers no signing in by MUNGE"):
        await service.sign_in_by_munge("alice:x", NODE)


@pytest.mark.spec("TRY-4")
@pytest.mark.parametrize("cluster", ["", "a b", "../x", "x" * 60, "Ü"])
def test_a_server_can_not_choose_what_is_signed(cluster: str) -> None:
    with pytest.raises(BadName):
        str(MungeClaim(cluster, "host"))


@pytest.mark.spec("TRY-4")
@pytest.mark.threat("munge-key")
@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "::1"])
async def test_a_name_that_each_machine_has_is_good_from_the_server_itself_alone(host: str) -> None:
    # Else a program of another user on a login host could pass on what it got at its own port.
    credential = f"alice:{MungeClaim('lab-1', host)}"
    with pytest.raises(TokenRefused):
        await sign_in().sign_in(credential, NODE)
    for address in ("127.0.0.1", "::1", "::ffff:127.0.0.1", ""):
        assert (await sign_in().sign_in(credential, address)).user == "alice"


@pytest.mark.spec("TRY-4")
async def test_an_address_that_tries_without_end_costs_no_process_for_each_try() -> None:
    signing = sign_in()
    for _ in range(300):
        with pytest.raises(TokenRefused):
            await signing.sign_in("alice:", NODE)
    with pytest.raises(RateLimited, match=f"from {NODE}: 300 a minute") as limit:
        await signing.sign_in("alice:", NODE)
    assert limit.value.retry_after_s == 1
    claim = f"alice:{MungeClaim('lab-1', 'login.example')}"
    assert (await signing.sign_in(claim, "10.1.0.8")).user == "alice", "others are not held up"
