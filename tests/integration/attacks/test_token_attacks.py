"""Forged tokens, weak secrets and unknown keys at a real server: attacks 4, 5 and 6."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import grpc
import pytest

from lattice.access.tokens import LOGIN_HINT, REFUSED
from lattice.adapters.oidc.keys import COOLDOWN_S
from lattice.wire.v1.identity_pb2 import Identity, WhoAmIRequest
from tests.eventually import eventually
from tests.fakes.forged_tokens import FORGERIES, UNSPOKEN, Forge
from tests.fakes.identity_provider import KEYS, IdentityProvider, running_provider
from tests.integration.attacks.attacked_server import WHOAMI, AttackedServer, ask_on

SPOKEN = {name: make for name, make in FORGERIES.items() if name not in UNSPOKEN}
FLOOD = 1000
_KNOWN_S = 0.5
"""A moment at the provider is a little later than at the server that asks it."""


def _forge(server: AttackedServer) -> Forge:
    return Forge(server.idp, server.clock, server.rsa, server.ec)


def _with_token(token: str, request_id: str = "") -> dict[str, str]:
    return {"Authorization": f"Bearer {token}", "X-Request-Id": request_id}


@pytest.mark.story
@pytest.mark.spec("AUTH-2", "AUTH-11")
@pytest.mark.threat("forged-token")
def test_every_forgery_gets_the_one_answer_over_https(server: AttackedServer) -> None:
    """Attack 4: the body is the same to the byte, and the log alone says which check failed."""
    forge = _forge(server)
    answers = {}
    with server.connection() as client:
        for name, make in SPOKEN.items():
            answer = ask_on(client, WHOAMI, headers=_with_token(make(forge), "forged"))
            answers[name] = (answer.status, answer.headers.get("www-authenticate"), answer.body)
    assert len(set(answers.values())) == 1, answers
    ((status, _, body),) = set(answers.values())
    assert status == 401
    assert REFUSED.encode() in body
    for signer in (server.ec, server.rsa):
        good = _with_token(server.idp.token(signer, server.clock))
        assert server.ask(WHOAMI, headers=good).status == 200
    refused = eventually(
        lambda: [each for each in server.logged("access refused") if "WhoAmI" in each["rpc"]],
        lambda found: len(found) >= len(SPOKEN),
    )
    assert all(each["reason"] for each in refused)


@pytest.mark.spec("AUTH-2", "AUTH-11")
@pytest.mark.threat("forged-token")
def test_every_forgery_gets_the_one_answer_over_grpc(server: AttackedServer) -> None:
    """Attack 4."""
    forge = _forge(server)
    with server.channel() as channel:
        call = channel.unary_unary(
            "/lattice.v1.IdentityService/WhoAmI",
            WhoAmIRequest.SerializeToString,
            Identity.FromString,
        )

        def ask(token: str) -> Any:
            metadata = (("authorization", f"Bearer {token}"),)
            return call(WhoAmIRequest(), metadata=metadata, timeout=60)

        answers = {}
        for name, make in SPOKEN.items():
            with pytest.raises(grpc.RpcError) as refused:
                ask(make(forge))
            error: Any = refused.value
            trailers = dict(error.trailing_metadata() or ())
            answers[name] = (error.code(), error.details(), trailers["lattice-hint"])
        assert set(answers.values()) == {(grpc.StatusCode.UNAUTHENTICATED, REFUSED, LOGIN_HINT)}
        assert ask(server.token()).user.value == "alice"


@pytest.mark.spec("AUTH-11")
@pytest.mark.parametrize(
    ("claims", "hint"),
    [
        ({"aud": "account"}, "aud"),
        ({"aud": []}, "aud"),
        ({"aud": ["account", "lattice2"]}, "aud"),
        ({"exp": 1_000_000_000}, "ran out"),
    ],
    ids=["aud of another", "aud empty", "aud a list of others", "expired"],
)
@pytest.mark.threat("forged-token")
def test_a_token_with_one_honest_fault_gets_the_same_message(
    server: AttackedServer, claims: dict[str, Any], hint: str
) -> None:
    """Attack 4: only the hint says more, to the holder of a token that the provider signed."""
    answer = server.ask(WHOAMI, headers=server.bearer(**claims))
    assert answer.status == 401
    assert answer.json["error"]["message"] == REFUSED
    assert hint in answer.json["error"]["hint"]


def test_no_token_leads_the_server_anywhere(server: AttackedServer) -> None:
    """Attack 4: `jku`, `x5u` and a `kid` that is a URL name a listener, which nobody asks."""
    forge = _forge(server)
    with running_provider() as listener:
        for header in ("jku", "x5u", "kid"):
            for signer in (forge.ec, forge.own_ec):
                token = forge.with_header(signer, **{header: f"{listener.issuer}/keys"})
                assert server.ask(WHOAMI, headers=_with_token(token)).status == 401
        assert not listener.asked


_SHORT = "0123456789012345678901234567890"


def _in_api(secret: str) -> Callable[[AttackedServer], None]:
    def set_secret(server: AttackedServer) -> None:
        del server.config["api"]["oidc_issuer"]
        server.config["api"]["oidc_hmac_secret"] = secret

    return set_secret


def _in_secret_file(server: AttackedServer) -> None:
    file = server.folder / "secret"
    file.write_text("\n")
    file.chmod(0o600)
    del server.config["api"]["oidc_issuer"]
    server.config["api"]["oidc_hmac_secret_file"] = str(file)


def _development_token(token: str) -> Callable[[AttackedServer], None]:
    def set_token(server: AttackedServer) -> None:
        server.config["identity"]["development_token"] = token

    return set_token


def _key_file(section: str, key: str, content: bytes) -> Callable[[AttackedServer], None]:
    def write(server: AttackedServer) -> None:
        file = server.folder / "weak.key"
        file.write_bytes(content)
        file.chmod(0o600)
        server.config[section][key] = str(file)

    return write


WEAK: dict[str, tuple[str, Callable[[AttackedServer], None]]] = {
    "HMAC secret empty": ("api.oidc_hmac_secret", _in_api("")),
    "HMAC secret of 31 bytes": ("api.oidc_hmac_secret", _in_api(_SHORT)),
    "HMAC secret in an empty file": ("api.oidc_hmac_secret", _in_secret_file),
    "development token empty": ("identity.development_token", _development_token("")),
    "development token of 31 bytes": ("identity.development_token", _development_token(_SHORT)),
    "grant key empty": ("identity.grant_key", _key_file("identity", "grant_key", b"")),
    "grant key of 31 bytes": (
        "identity.grant_key",
        _key_file("identity", "grant_key", _SHORT.encode()),
    ),
    "authority's key empty": ("identity.ca_cert", _key_file("identity", "ca_key", b"")),
    "TLS key empty": ("api.tls_cert", _key_file("api", "tls_key", b"")),
}


@pytest.mark.spec("AUTH-2")
@pytest.mark.parametrize(("key", "weaken"), WEAK.values(), ids=WEAK)
def test_a_weak_key_stops_the_start(
    tmp_path: Path, idp: IdentityProvider, key: str, weaken: Callable[[AttackedServer], None]
) -> None:
    """Attack 5."""
    server = AttackedServer(tmp_path, idp)
    weaken(server)
    done = server.run()
    assert done.returncode == 78, done.stderr
    assert key in done.stderr
    assert _SHORT not in done.stderr, "a secret is not shown"


@pytest.mark.spec("AUTH-2")
@pytest.mark.parametrize("secret", ["", _SHORT], ids=["empty", "31 bytes"])
@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("LATTICE_OIDC_HMAC_SECRET", "api.oidc_hmac_secret"),
        ("LATTICE_AGENT_TOKEN", "identity.development_token"),
    ],
)
def test_a_weak_key_in_the_environment_stops_the_start(
    tmp_path: Path, idp: IdentityProvider, name: str, key: str, secret: str
) -> None:
    """Attack 5: an empty variable is an empty secret, not none."""
    server = AttackedServer(tmp_path, idp)
    del server.config["api"]["oidc_issuer"]
    done = server.run({name: secret})
    assert done.returncode == 78, done.stderr
    assert key in done.stderr


@pytest.fixture
def fresh(tmp_path: Path, idp: IdentityProvider) -> Iterator[AttackedServer]:
    """A server of its own: how often it asks its provider is what is counted."""
    made = AttackedServer(tmp_path, idp)
    with made.serving():
        yield made


def _flood(server: AttackedServer, count: int = FLOOD) -> list[int]:
    """Tokens with as many unknown key ids; the answers of a valid caller in between."""
    forge, valid = _forge(server), []
    with server.connection() as hostile, server.connection() as honest:
        for number in range(count):
            token = forge.with_header(forge.own_ec, kid=f"unknown-{number}")
            assert ask_on(hostile, WHOAMI, headers=_with_token(token)).status == 401
            if number % 50 == 0:
                valid.append(ask_on(honest, WHOAMI, headers=server.bearer()).status)
    return valid


def _fetches(idp: IdentityProvider) -> list[float]:
    return [moment for path, moment in idp.asked_at if path == KEYS]


def _spaces(moments: list[float]) -> list[float]:
    return [later - earlier for earlier, later in pairwise(moments)]


@pytest.mark.spec("AUTH-2", "LIMIT-4")
@pytest.mark.threat("unknown-keys")
def test_a_thousand_unknown_keys_bring_no_more_than_a_fetch_in_thirty_seconds(
    fresh: AttackedServer,
) -> None:
    """Attack 6: counted at the provider; who has a valid token is answered meanwhile."""
    assert set(_flood(fresh)) == {200}
    assert all(space >= COOLDOWN_S - _KNOWN_S for space in _spaces(_fetches(fresh.idp)))


@pytest.mark.long
@pytest.mark.spec("AUTH-2", "LIMIT-4")
def test_a_flood_after_the_pause_brings_one_fetch(fresh: AttackedServer) -> None:
    """Attack 6: the first unknown key starts it, as a rotated key has to; the others do not."""
    time.sleep(COOLDOWN_S)
    before = len(_fetches(fresh.idp))
    assert set(_flood(fresh, 100)) == {200}
    fetches = _fetches(fresh.idp)
    assert len(fetches) > before
    assert all(space >= COOLDOWN_S - _KNOWN_S for space in _spaces(fetches))


@pytest.mark.long
@pytest.mark.threat("unknown-keys")
def test_a_slow_provider_holds_up_nobody_whose_key_is_known(fresh: AttackedServer) -> None:
    """Attack 6, while the provider takes the question and never answers it."""
    time.sleep(COOLDOWN_S)
    forge = _forge(fresh)
    fresh.idp.free.clear()
    try:
        with fresh.connection() as waiting:
            token = forge.with_header(forge.own_ec, kid="unknown")
            waiting.request("GET", WHOAMI, headers=_with_token(token))
            assert fresh.ask(WHOAMI, headers=fresh.bearer()).status == 200
            assert waiting.getresponse().status == 401
    finally:
        fresh.idp.free.set()


@pytest.mark.timing
@pytest.mark.spec("AUTH-2", "LIMIT-4")
def test_valid_callers_take_at_most_three_times_as_long_during_a_flood(
    fresh: AttackedServer,
) -> None:
    """Attack 6: each question of the honest is asked behind 50 of the others."""
    headers = fresh.bearer()
    with fresh.connection() as honest:

        def timed() -> float:
            begun = time.monotonic()
            assert ask_on(honest, WHOAMI, headers=headers).status == 200
            return time.monotonic() - begun

        usual = sorted(timed() for _ in range(100))
        forge, during = _forge(fresh), []
        with fresh.connection() as hostile:
            for number in range(FLOOD):
                token = forge.with_header(forge.own_ec, kid=f"unknown-{number}")
                hostile.request("GET", WHOAMI, headers=_with_token(token))
                during.append(timed())
                hostile.getresponse().read()
    assert sorted(during)[int(len(during) * 0.99)] <= 3 * usual[98], (during[-5:], usual[-5:])
