"""Every way to sign in that the lab offers, walked without a browser."""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import subprocess
import sys
import threading
import urllib.error
import urllib.parse
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from lab.laboratory import Lab
from lab.oidc import CLIENT_ID
from lab.signin import SignInError, authorization_code, sign_in

pytestmark = [pytest.mark.lab, pytest.mark.timeout(120)]

_CHECKOUT = Path(__file__).parents[3]
_EVERY_SCOPE = (
    "openid offline_access allocations:read allocations:attach allocations:write admin "
    "system:admin tenant:admin operator sensitive:claim readonly compliance:review"
)


def claims(token: str, part: int = 1) -> dict[str, Any]:
    word = token.split(".")[part]
    decoded: dict[str, Any] = json.loads(base64.urlsafe_b64decode(word + "=" * (-len(word) % 4)))
    return decoded


def ask(lab: Lab, path: str, form: dict[str, str] | None = None) -> dict[str, Any]:
    data = urllib.parse.urlencode(form).encode() if form is not None else None
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with lab.enter_network(), opener.open(lab.oidc.issuer + path, data, timeout=10) as answer:
        text = answer.read()
    told: dict[str, Any] = json.loads(text) if text else {}
    return told


def authorization(redirect_port: int, scope: str) -> tuple[str, str]:
    """An authorization address and the PKCE verifier behind it."""
    verifier = secrets.token_urlsafe(48)
    challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest())
    query = {
        "client_id": CLIENT_ID,
        "response_type": "code",
        "redirect_uri": f"http://127.0.0.1:{redirect_port}/callback",
        "scope": scope,
        "prompt": "consent",
        "state": "s",
        "code_challenge": challenge.rstrip(b"=").decode(),
        "code_challenge_method": "S256",
    }
    return "/auth?" + urllib.parse.urlencode(query), verifier


@pytest.mark.parametrize(
    ("user", "roles", "tenant"),
    [
        ("alice", set(), None),
        ("carol", {"tenant:admin"}, "biology"),
        ("olga", {"admin", "system:admin"}, None),
        ("oscar", {"operator"}, None),
    ],
)
def test_role_scopes_are_cut_to_what_the_person_may_have(
    engines: Lab, user: str, roles: set[str], tenant: str | None
) -> None:
    answer = engines.oidc.token(user, _EVERY_SCOPE)
    told = claims(answer["access_token"])
    open_to_all = {"allocations:read", "allocations:attach", "allocations:write", "readonly"}
    assert set(told["scope"].split()) == roles | open_to_all
    assert answer["scope"] == told["scope"]
    assert (told["sub"], told["preferred_username"], told.get("tenant")) == (user, user, tenant)
    assert told["aud"] == "lattice-api"
    assert claims(answer["access_token"], 0)["typ"] == "at+jwt"
    assert told["iss"] == engines.oidc.issuer
    assert told["exp"] - told["iat"] == 600
    assert claims(answer["access_token"], 0)["alg"] == "RS256"


def test_code_flow_ends_at_the_callback_on_any_loopback_port(engines: Lab) -> None:
    heard: list[str] = []

    class Callback(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            heard.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<p>You can close this page.</p>")

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with engines.enter_network(), HTTPServer(("127.0.0.1", 0), Callback) as server:
        threading.Thread(target=server.handle_request).start()
        path, verifier = authorization(server.server_port, "openid offline_access")
        page = sign_in("bob", engines.oidc.issuer + path)
    assert page.words == "You can close this page."
    told = urllib.parse.parse_qs(urllib.parse.urlsplit(heard[0]).query)
    assert told["state"] == ["s"]
    form = {
        "grant_type": "authorization_code",
        "code": told["code"][0],
        "client_id": CLIENT_ID,
        "redirect_uri": f"http://127.0.0.1:{server.server_port}/callback",
    }
    with pytest.raises(urllib.error.HTTPError):
        ask(engines, "/token", {**form, "code_verifier": "x" * 43})
    path, verifier = authorization(4711, "openid offline_access")
    with engines.enter_network():
        code = authorization_code("bob", engines.oidc.issuer + path)["code"]
    form |= {"code": code, "code_verifier": verifier}
    answer = ask(engines, "/token", form | {"redirect_uri": "http://127.0.0.1:4711/callback"})
    assert claims(answer["access_token"])["sub"] == "bob"
    assert "refresh_token" in answer


def test_who_refuses_and_who_is_unknown_get_no_code(engines: Lab) -> None:
    path, _ = authorization(4711, "openid")
    with engines.enter_network():
        told = authorization_code("alice", engines.oidc.issuer + path, refuse=True)
        assert told["error"] == "access_denied"
        with pytest.raises(SignInError, match="No such account"):
            authorization_code("mallory", engines.oidc.issuer + path)


def test_refresh_tokens_are_used_once_and_revoked(engines: Lab) -> None:
    first = engines.oidc.token("alice", "openid offline_access")
    form = {"grant_type": "refresh_token", "client_id": CLIENT_ID}
    second = ask(engines, "/token", form | {"refresh_token": first["refresh_token"]})
    assert second["refresh_token"] != first["refresh_token"]
    third = engines.oidc.token("alice", "openid offline_access")
    ask(
        engines,
        "/token/revocation",
        {"client_id": CLIENT_ID, "token": third["refresh_token"]},
    )
    for spent in (first, third):
        with pytest.raises(urllib.error.HTTPError):
            ask(engines, "/token", form | {"refresh_token": spent["refresh_token"]})


def test_new_keys_sign_while_old_ones_stay_until_retired(engines: Lab) -> None:
    before = claims(engines.oidc.token("alice")["access_token"], 0)["kid"]
    kept = engines.oidc.token("alice", "openid offline_access")["refresh_token"]
    new = engines.oidc.rotate_keys()
    assert claims(engines.oidc.token("alice")["access_token"], 0)["kid"] == new
    assert {key["kid"] for key in ask(engines, "/jwks")["keys"]} >= {before, new}
    engines.oidc.retire_keys()
    assert [key["kid"] for key in ask(engines, "/jwks")["keys"]] == [new]
    form = {"grant_type": "refresh_token", "client_id": CLIENT_ID, "refresh_token": kept}
    assert claims(ask(engines, "/token", form)["access_token"], 0)["kid"] == new


def test_the_robot_has_its_own_name_and_no_role(engines: Lab) -> None:
    told = claims(engines.oidc.robot_token("allocations:read admin")["access_token"])
    assert told["sub"] == told["client_id"] == "robot"
    assert told["scope"] == "allocations:read"
    assert "preferred_username" not in told


def test_the_lifetime_of_tokens_can_be_set(engines: Lab) -> None:
    engines.oidc.set_access_token_ttl(7)
    assert engines.oidc.token("alice")["expires_in"] == 7
    engines.oidc.set_access_token_ttl(600)


def test_the_driver_works_as_a_command_of_the_lab(engines: Lab) -> None:
    device = ask(engines, "/device/auth", {"client_id": CLIENT_ID, "scope": "openid"})
    url = device["verification_uri_complete"]
    driver = [sys.executable, "-m", "lab.signin", "--user", "erin", url]
    done = engines.ctl(["env", "-C", str(_CHECKOUT), *driver], check=False)
    assert done.returncode == 0, done.stderr
    form = {
        "grant_type": "urn:ietf:params:oauth:grant-type:device_code",
        "client_id": CLIENT_ID,
        "device_code": device["device_code"],
    }
    assert claims(ask(engines, "/token", form)["access_token"])["sub"] == "erin"


def test_a_key_is_made_while_node_collects_garbage() -> None:
    """Node 20 then hangs if it exports as JWK: the export and the collector want the same lock."""
    program = f"""
        import {{ signingKey }} from '{_CHECKOUT}/lab/oidc/signing_key.mjs';
        for (let made = 0; made < 2000; made += 1) signingKey(512);
    """
    argv = ["node", "--gc-interval=101", "--input-type=module", "--eval", program]
    subprocess.run(argv, check=True, timeout=60)


def test_a_key_has_the_numbers_that_node_reads_from_it() -> None:
    program = f"""
        import crypto from 'node:crypto';
        import {{ signingKey }} from '{_CHECKOUT}/lab/oidc/signing_key.mjs';
        for (let made = 0; made < 20; made += 1) {{
          const key = signingKey(1024);
          const read = crypto.createPrivateKey({{ key, format: 'jwk' }});
          const told = read.export({{ format: 'jwk' }});
          for (const name in told) if (told[name] !== key[name]) throw new Error(name);
        }}
    """
    subprocess.run(["node", "--input-type=module", "--eval", program], check=True, timeout=60)
