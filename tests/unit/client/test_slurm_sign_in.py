"""How a Slurm token leaves this machine, and that it leaves by TLS alone."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lattice.base.errors import ConfigurationError, LoginRequired
from lattice.client import slurm_sign_in
from lattice.client.slurm_sign_in import renewed_tokens, slurm_tokens
from lattice.domain.signin import GrantRefused
from lattice.features.identity.model import SignedIn

URLS = ("https://s1.example", "https://s2.example")


class Server:
    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.refuses = False

    def call(self, call: Any) -> Any:
        self.sent.append(json.loads(call.body))
        assert call.anonymous
        if self.refuses:
            raise LoginRequired("The token was not accepted.", hint="h")
        return SignedIn(token="own", user="alice", lifetime_s=1800)


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.mark.spec("TRY-4")
def test_the_token_of_the_environment_is_exchanged(server: Server) -> None:
    made = slurm_tokens(server, URLS, {"SLURM_JWT": " a.b.c\n"})
    assert (made.access, made.lifetime_s) == ("own", 1800.0)
    assert made.refresh == "slurm", "another token renews it; this one is not kept"
    assert server.sent == [{"token": "a.b.c"}]


@pytest.mark.spec("TRY-4")
@pytest.mark.threat("slurm-token")
@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:8080", "http://localhost:8080", "http://[::1]:8080"]
)
def test_it_is_not_sent_in_plain_text_to_any_of_the_servers(server: Server, url: str) -> None:
    for urls in ((url,), (*URLS, url)):
        with pytest.raises(ConfigurationError, match="by https alone"):
            slurm_tokens(server, urls, {"SLURM_JWT": "a.b.c"})
    assert server.sent == []


@pytest.mark.spec("TRY-4")
def test_without_one_scontrol_gives_it(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm_sign_in, "own_token", lambda environment: f"of {environment['U']}")
    slurm_tokens(server, URLS, {"U": "alice", "SLURM_JWT": ""})
    assert server.sent == [{"token": "of alice"}]


@pytest.mark.spec("TRY-4")
def test_a_refused_renewal_ends_the_sign_in(server: Server) -> None:
    assert renewed_tokens(server, URLS, {"SLURM_JWT": "a.b.c"}).access == "own"
    server.refuses = True
    with pytest.raises(GrantRefused):
        renewed_tokens(server, URLS, {"SLURM_JWT": "a.b.c"})
