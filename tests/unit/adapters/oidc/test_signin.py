"""Signing in against a provider that misbehaves; a real one is in the integration tests."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import parse_qs, urlsplit
from urllib.request import urlopen

import pytest

from lattice.adapters.oidc.endpoints import Endpoints
from lattice.adapters.oidc.loopback import Loopback
from lattice.adapters.oidc.signin import SignInProvider, open_page
from lattice.base.errors import ConfigurationError, LatticeError, LoginRequired, Unavailable
from lattice.base.fast_start.http1 import HttpTarget
from lattice.domain.signin import DeviceCode, GrantRefused
from tests.eventually import eventually
from tests.fakes.web import Answer, Request, Web, web

WELL_KNOWN = "/.well-known/openid-configuration"
GRANTED = {"access_token": "a1", "refresh_token": "r1", "token_type": "Bearer", "expires_in": 600}


@pytest.fixture
def idp() -> Iterator[Web]:
    with web({}) as running:
        running.routes |= {
            WELL_KNOWN: {
                "issuer": running.url,
                "authorization_endpoint": f"{running.url}/auth",
                "token_endpoint": f"{running.url}/token",
                "device_authorization_endpoint": f"{running.url}/device",
                "revocation_endpoint": f"{running.url}/revoke",
            },
            "/token": GRANTED,
        }
        yield running


def describe(idp: Web, **changes: Any) -> None:
    found = idp.routes[WELL_KNOWN]
    assert isinstance(found, dict)
    idp.routes[WELL_KNOWN] = {**found, **changes}


class Person:
    """Provider under test, with sleeping counted instead of done."""

    def __init__(self, issuer: str, **options: Any) -> None:
        self.slept: list[float] = []
        self.provider = SignInProvider(
            Endpoints(HttpTarget(environment={}, timeout_s=60), issuer, issuer),
            issuer,
            "lattice",
            environment={},
            browser=False,
            sleep=self.slept.append,
            **options,
        )

    def device(self) -> Any:
        shown: list[DeviceCode] = []
        return self.provider.by_device((), shown.append), shown

    def by_hand(self, answer: str = "the-code", scopes: tuple[str, ...] = ()) -> Any:
        asked: list[str] = []

        def ask(address: str) -> str:
            asked.append(address)
            query = {name: found[0] for name, found in parse_qs(urlsplit(address).query).items()}
            return answer.format(**query)

        return self.provider.by_hand(scopes, ask), asked[0]


def form(request: Request) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(request.body.decode()).items()}


# Where to ask: attack 27


@pytest.mark.spec("AUTH-1")
@pytest.mark.parametrize(
    "issuer",
    [
        "http://idp.example",
        "file:///etc/passwd",
        "http://169.254.169.254",
        "ftp://x",
        "https://u:p@x",
        "",
    ],
)
def test_issuer_must_be_encrypted_or_here(issuer: str) -> None:
    with pytest.raises(ConfigurationError, match="not an https address"):
        Endpoints(HttpTarget(), issuer, issuer)


@pytest.mark.spec("AUTH-1")
@pytest.mark.parametrize(
    "address",
    [
        "http://169.254.169.254/latest/meta-data",
        "file:///etc/passwd",
        "gopher://x/",
        "//x/token",
        7,
        "http://127.0.0.1.evil.example/token",
        "http://127.0.0.1@evil.example/",
        "http://evil.example\\@127.0.0.1/",
    ],
)
def test_no_word_of_the_document_leads_astray(idp: Web, address: Any) -> None:
    describe(idp, token_endpoint=address)
    with pytest.raises(ConfigurationError, match="token_endpoint"):
        Person(idp.url).by_hand()
    assert [request.path for request in idp.requests] == [WELL_KNOWN]


@pytest.mark.spec("AUTH-1")
def test_document_of_another_issuer_is_refused(idp: Web) -> None:
    describe(idp, issuer="https://other.example")
    with pytest.raises(ConfigurationError, match="not 'http"):
        Person(idp.url).by_hand()


@pytest.mark.spec("AUTH-1")
def test_redirects_are_not_followed(idp: Web) -> None:
    with web({"*": {"issuer": idp.url}}) as elsewhere:
        idp.routes[WELL_KNOWN] = Answer(status=302, headers={"Location": elsewhere.url})
        with pytest.raises(Unavailable, match="302"):
            Person(idp.url).by_hand()
        idp.routes[WELL_KNOWN] = {
            "issuer": idp.url,
            "authorization_endpoint": f"{idp.url}/auth",
            "token_endpoint": f"{idp.url}/token",
        }
        idp.routes["/token"] = Answer(status=307, headers={"Location": f"{elsewhere.url}/steal"})
        with pytest.raises(LatticeError):
            Person(idp.url).by_hand()
        assert elsewhere.requests == []


@pytest.mark.parametrize(
    "answer", [Answer(b"<html>"), Answer([1]), Answer(status=500), Answer(raw=b"")]
)
def test_what_is_no_provider(idp: Web, answer: Answer) -> None:
    idp.routes[WELL_KNOWN] = answer
    with pytest.raises(Unavailable):
        Person(idp.url).by_hand()


# The code


@pytest.mark.spec("AUTH-1")
def test_request_carries_pkce_state_and_nonce(idp: Web) -> None:
    (tokens, address) = Person(idp.url).by_hand(scopes=("tenant:admin",))
    query = {name: found[0] for name, found in parse_qs(urlsplit(address).query).items()}
    assert query["scope"] == "openid offline_access tenant:admin"
    assert query["code_challenge_method"] == "S256"
    assert query["prompt"] == "consent"
    sent = form(idp.requests[-1])
    import hashlib

    digest = hashlib.sha256(sent["code_verifier"].encode()).digest()
    assert query["code_challenge"] == base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
    assert sent["redirect_uri"] == query["redirect_uri"]
    assert len(query["state"]) >= 32
    assert sent["code"] == "the-code"
    assert (tokens.access, tokens.refresh, tokens.lifetime_s) == ("a1", "r1", 600)
    other = Person(idp.url).by_hand()[1]
    for name in ("state", "nonce", "code_challenge"):
        assert f"{name}={query[name]}" not in other


def test_only_scopes_the_provider_knows_are_added(idp: Web) -> None:
    describe(idp, scopes_supported=["openid"])
    assert "scope=openid&" in Person(idp.url).by_hand()[1]


def token_of(**claims: Any) -> str:
    body = base64.urlsafe_b64encode(json.dumps(claims).encode()).rstrip(b"=").decode()
    return f"e30.{body}.c2ln"


@pytest.mark.spec("AUTH-1")
@pytest.mark.parametrize(
    "spoil",
    [{"nonce": "replayed"}, {"iss": "https://other"}, {"aud": "someone"}, {"aud": ["a", "b"]}],
)
def test_tokens_of_another_attempt_are_refused(idp: Web, spoil: dict[str, Any]) -> None:
    person = Person(idp.url)
    nonces: list[str] = []

    def ask(address: str) -> str:
        nonces.append(parse_qs(urlsplit(address).query)["nonce"][0])
        return "code"

    def grant(_: Request) -> dict[str, Any]:
        claims = {"nonce": nonces[0], "iss": idp.url, "aud": "lattice"} | spoil
        return GRANTED | {"id_token": token_of(**claims)}

    idp.routes["/token"] = grant
    with pytest.raises(LoginRequired, match="another attempt"):
        person.provider.by_hand((), ask)


@pytest.mark.spec("AUTH-1")
@pytest.mark.parametrize(
    "answer", ["x?code=c&state=forged", "x?code=c", "?error=access_denied&state="]
)
def test_pasted_address_needs_our_state(idp: Web, answer: str) -> None:
    with pytest.raises(LatticeError):
        Person(idp.url).by_hand(answer)
    assert "/token" not in [request.path for request in idp.requests]


@pytest.mark.spec("AUTH-1")
def test_answer_of_another_issuer_is_refused(idp: Web) -> None:
    """A mix-up of two providers (RFC 9207)."""
    with pytest.raises(LoginRequired, match="another identity provider"):
        Person(idp.url).by_hand("http://x/callback?code=c&state={state}&iss=https%3A%2F%2Fevil")
    describe(idp, authorization_response_iss_parameter_supported=True)
    with pytest.raises(LoginRequired, match="another identity provider"):
        Person(idp.url).by_hand("http://x/callback?code=c&state={state}")


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (Answer({"error": "invalid_grant", "error_description": "no \x1b"}, 400), "too old"),
        (Answer(GRANTED | {"token_type": "mac"}), "no bearer token"),
        (Answer({"token_type": "Bearer"}), "no bearer token"),
        (Answer(b"oops", 502), "502"),
    ],
)
def test_token_answers_that_are_none(idp: Web, answer: Answer, said: str) -> None:
    idp.routes["/token"] = answer
    with pytest.raises(LatticeError, match=said):
        Person(idp.url).by_hand()


# The device


DEVICE = {
    "verification_uri": "http://x/d",
    "user_code": "AB-CD",
    "device_code": "d",
    "expires_in": 60,
}


def waiting(*errors: str) -> Any:
    left = list(errors)

    def answer(_: Request) -> Answer:
        return Answer({"error": left.pop(0)}, 400) if left else Answer(GRANTED)

    return answer


@pytest.mark.spec("AUTH-1")
def test_device_flow_keeps_to_the_providers_pace(idp: Web) -> None:
    idp.routes["/device"] = DEVICE | {"interval": 3}
    idp.routes["/token"] = waiting("authorization_pending", "slow_down", "authorization_pending")
    person = Person(idp.url)
    tokens, (shown,) = person.device()
    assert tokens.access == "a1"
    assert (shown.page, shown.code, shown.lifetime_s) == ("http://x/d", "AB-CD", 60)
    assert person.slept == [3, 3, 8, 8]


def test_device_flow_asks_less_often_while_the_provider_is_silent(idp: Web) -> None:
    idp.routes["/device"] = DEVICE
    left = [Answer(raw=b""), Answer(raw=b""), Answer(GRANTED)]
    idp.routes["/token"] = lambda _: left.pop(0)
    person = Person(idp.url)
    assert person.device()[0].access == "a1"
    assert person.slept == [5, 10, 20]


@pytest.mark.spec("AUTH-1")
@pytest.mark.parametrize(
    ("error", "said"),
    [("access_denied", "refused"), ("expired_token", "in time"), ("odd", "refuses: odd")],
)
def test_device_flow_ends(idp: Web, error: str, said: str) -> None:
    idp.routes["/device"] = DEVICE
    idp.routes["/token"] = waiting(error)
    with pytest.raises(LoginRequired, match=said):
        Person(idp.url).device()


@pytest.mark.spec("AUTH-1")
def test_device_code_has_an_end(idp: Web) -> None:
    idp.routes["/device"] = DEVICE
    idp.routes["/token"] = waiting(*["authorization_pending"] * 100)
    person = Person(idp.url)
    with pytest.raises(LoginRequired, match="in time"):
        person.device()
    assert sum(person.slept) == 60


def test_provider_without_devices(idp: Web) -> None:
    describe(idp, device_authorization_endpoint=None)
    with pytest.raises(ConfigurationError, match="no device authorization endpoint"):
        Person(idp.url).device()


# Renewing and revoking


@pytest.mark.spec("AUTH-1")
def test_renewal_refused_is_told_apart_from_a_provider_away(idp: Web) -> None:
    person = Person(idp.url)
    assert person.provider.renew("r0").refresh == "r1"
    assert form(idp.requests[-1])["refresh_token"] == "r0"
    idp.routes["/token"] = Answer({"error": "invalid_grant"}, 400)
    with pytest.raises(GrantRefused):
        person.provider.renew("r0")
    idp.routes["/token"] = Answer(b"", 503)
    with pytest.raises(Unavailable):
        person.provider.renew("r0")


@pytest.mark.spec("AUTH-1")
def test_revocation(idp: Web) -> None:
    idp.routes["/revoke"] = lambda request: Answer(
        {"error": "unsupported_token_type"}, 400 if form(request)["token"] == "a1" else 200
    )
    assert Person(idp.url).provider.revoke("r1", "a1")
    assert [form(request)["token"] for request in idp.requests[-2:]] == ["r1", "a1"]
    describe(idp, revocation_endpoint=None)
    assert not Person(idp.url).provider.revoke("r1")


# The loopback address


def test_nobody_comes(idp: Web) -> None:
    with pytest.raises(LoginRequired, match="Nobody signed in"):
        Person(idp.url, person_s=0.05).provider.by_browser((), lambda *_: None)


@pytest.mark.spec("AUTH-1")
def test_loopback_takes_one_answer() -> None:
    with Loopback("right") as loopback:
        base = loopback.address
        assert base.startswith("http://127.0.0.1:")
        for query in ("", "?state=wrong&code=x", "?code=x"):
            assert _status(base + query) == 400
        assert loopback.wait(0) is None
        with urlopen(f"{base}?state=right&code=first", timeout=60) as page:
            assert b"close this window" in page.read()
        assert _status(f"{base}?state=right&code=second") == 410
        found = loopback.wait(60)
    assert found is not None
    assert found["code"] == "first"
    with pytest.raises(OSError, match="refused"):
        urlopen(base, timeout=60)


def _status(url: str) -> int:
    with pytest.raises(HTTPError) as refused:
        urlopen(url, timeout=60)
    refused.value.close()
    return refused.value.code


def _sign_in_beside_a_slow_visitor() -> float:
    import socket

    with Loopback("right") as loopback:
        port = urlsplit(loopback.address).port
        assert port is not None
        with socket.create_connection(("127.0.0.1", port)) as idle:
            idle.sendall(b"GET /call")
            begun = time.monotonic()
            urlopen(f"{loopback.address}?state=right&code=c", timeout=60).close()
            return time.monotonic() - begun


def test_slow_visitor_holds_nobody_up() -> None:
    _sign_in_beside_a_slow_visitor()


@pytest.mark.timing
def test_who_signs_in_beside_a_slow_visitor_is_answered_within_two_seconds() -> None:
    assert _sign_in_beside_a_slow_visitor() < 2


# The browser


def test_browser_variable(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    script = tmp_path / "b"
    script.write_text(f'#!/bin/sh\nprintf %s "$*" > {seen}.new && mv {seen}.new {seen}\n')
    script.chmod(0o755)
    url = "https://idp/auth?a=1&b=$(id)"
    for entry, expected in ((f"{script}", url), (f"missing:{script} --new %s", f"--new {url}")):
        seen.unlink(missing_ok=True)
        assert open_page(url, {"BROWSER": entry, "PATH": "/usr/bin:/bin"})
        eventually(seen.exists)
        assert seen.read_text() == expected
    assert not open_page(url, {"BROWSER": "missing", "PATH": "/nowhere"})
