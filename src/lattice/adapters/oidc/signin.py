"""Signs in with an OpenID provider as a public client: no secret, always PKCE.

It supports the authorization code flow on a loopback address (RFC 8252, 7636, 9207) or by hand, and
the device flow (RFC 8628). It renews and revokes tokens (RFC 7009). The command line contains no
cryptography and needs none: tokens come directly from the provider over TLS, and the server
verifies them.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shlex
import shutil
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Mapping, Sequence
from urllib.parse import parse_qsl, urlencode, urlsplit

from lattice.adapters.oidc.endpoints import Endpoints, read_object
from lattice.adapters.oidc.loopback import Loopback
from lattice.base.errors import LatticeError, LoginRequired, Unavailable, UsageError
from lattice.base.fast_start.http1 import HttpTarget, Reply, tls_context
from lattice.domain.signin import DeviceCode, GrantRefused, Tokens

_OPENERS = ("xdg-open", "gio open", "wslview", "open")


def open_page(url: str, environment: Mapping[str, str]) -> bool:
    """True if a browser was started. `$BROWSER` comes first: commands, separated by colons."""
    named = [entry for entry in environment.get("BROWSER", "").split(":") if entry.strip()]
    return any(_start(entry, url, environment) for entry in named or _OPENERS)


def _start(entry: str, url: str, environment: Mapping[str, str]) -> bool:
    argv = shlex.split(entry)
    program = shutil.which(argv[0], path=environment.get("PATH")) if argv else None
    if program is None:
        return False
    if any("%s" in argument for argument in argv):
        argv = [argument.replace("%s", url) for argument in argv]
    else:
        argv.append(url)
    silence = [(os.POSIX_SPAWN_OPEN, stream, os.devnull, os.O_RDWR, 0o600) for stream in (0, 1, 2)]
    try:
        # Its own session: Ctrl-C in the terminal must not reach the browser.
        os.posix_spawn(program, argv, environment, file_actions=silence, setsid=True)
    except OSError:
        return False
    return True


_DEVICE_GRANT = "urn:ietf:params:oauth:grant-type:device_code"
_USUAL = ("openid", "offline_access")
_PERSON_S = 300.0
"""How long a person may take in the browser."""
_AGAIN = "Run `lattice login` again."


class SignInProvider:
    """One issuer, with this program as one of its clients."""

    def __init__(
        self,
        endpoints: Endpoints,
        issuer: str,
        client_id: str,
        *,
        environment: Mapping[str, str],
        browser: bool = True,
        sleep: Callable[[float], None] = time.sleep,
        person_s: float = _PERSON_S,
    ) -> None:
        self._endpoints = endpoints
        self._issuer = issuer
        self._client_id = client_id
        self._environment = environment
        self._browser = browser
        self._sleep = sleep
        self._person_s = person_s

    @classmethod
    def at(
        cls,
        issuer: str,
        client_id: str,
        *,
        address: str | None = None,
        ca: str | None = None,
        environment: Mapping[str, str],
        browser: bool = True,
    ) -> SignInProvider:
        """Over the network; `ca` is trusted in addition to the system's certificates."""
        context = tls_context(ca, system_too=True) if issuer.startswith("https:") else None
        target = HttpTarget(context=context, environment=environment)
        endpoints = Endpoints(target, issuer, address or issuer)
        return cls(endpoints, issuer, client_id, environment=environment, browser=browser)

    def by_browser(self, scopes: Sequence[str], show: Callable[[str, bool], None]) -> Tokens:
        request = _CodeRequest()
        with Loopback(request.state) as loopback:
            address = self._page(request, loopback.address, scopes)
            show(address, self._browser and open_page(address, self._environment))
            answer = loopback.wait(self._person_s)
        if answer is None:
            minutes = int(self._person_s // 60)
            raise LoginRequired(f"Nobody signed in within {minutes} minutes.", hint=_AGAIN)
        return self._redeem(request, loopback.address, answer)

    def by_hand(self, scopes: Sequence[str], ask: Callable[[str], str]) -> Tokens:
        request = _CodeRequest()
        # Nothing listens there: it only has to be an address that the provider accepts.
        back = f"http://127.0.0.1:{49152 + secrets.randbelow(16384)}/callback"
        pasted = ask(self._page(request, back, scopes)).strip()
        if "code=" not in pasted and "error=" not in pasted:
            # A code alone: PKCE binds it to this request and issuer, so it needs no state.
            return self._redeem(request, back, {"code": pasted, "iss": self._issuer})
        query = urlsplit(pasted).query or pasted
        answer = dict(parse_qsl(query, max_num_fields=20))
        if answer.get("state") != request.state:
            raise UsageError("This address belongs to another attempt to sign in.", hint=_AGAIN)
        return self._redeem(request, back, answer)

    def _page(self, request: _CodeRequest, back: str, scopes: Sequence[str]) -> str:
        page = self._endpoints.get("authorization_endpoint")
        # Providers give a refresh token only with new consent (OpenID Connect Core, 11).
        fields = {
            "client_id": self._client_id,
            "response_type": "code",
            "redirect_uri": back,
            "scope": self._scope(scopes),
            "state": request.state,
            "nonce": request.nonce,
            "code_challenge": request.challenge,
            "code_challenge_method": "S256",
            "prompt": "consent",
        }
        return f"{page}{'&' if '?' in page else '?'}{urlencode(fields)}"

    def _scope(self, extra: Sequence[str]) -> str:
        known = self._endpoints.document().get("scopes_supported")
        usual = [name for name in _USUAL if not isinstance(known, list) or name in known]
        return " ".join(dict.fromkeys([*usual, *extra]))

    def _redeem(self, request: _CodeRequest, back: str, answer: Mapping[str, str]) -> Tokens:
        if "error" in answer:
            raise _refusal(answer)
        named = answer.get("iss")
        promised = self._endpoints.document().get("authorization_response_iss_parameter_supported")
        if (named is not None or promised is True) and named != self._issuer:
            raise LoginRequired("The answer came from another identity provider.", hint=_AGAIN)
        code = answer.get("code")
        if not code:
            raise LoginRequired("The answer holds no code.", hint=_AGAIN)
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": back,
            "client_id": self._client_id,
            "code_verifier": request.verifier,
        }
        reply = self._endpoints.post(self._endpoints.get("token_endpoint"), form)
        found = _success(reply)
        self._check_identity(found.get("id_token"), request.nonce)
        return _tokens(found)

    def _check_identity(self, token: object, nonce: str) -> None:
        """Check that the tokens are of this attempt. The server verifies their signature."""
        if not isinstance(token, str):
            return
        claims = _claims(token)
        audience = claims.get("aud")
        audiences = audience if isinstance(audience, list) else [audience]
        fits = claims.get("iss") == self._issuer and self._client_id in audiences
        if claims.get("nonce") != nonce or not fits:
            raise LoginRequired("The tokens belong to another attempt to sign in.", hint=_AGAIN)

    def by_device(self, scopes: Sequence[str], show: Callable[[DeviceCode], None]) -> Tokens:
        endpoint = self._endpoints.get("device_authorization_endpoint")
        form = {"client_id": self._client_id, "scope": self._scope(scopes)}
        found = _success(self._endpoints.post(endpoint, form))
        code, device = _device_code(found)
        show(code)
        interval = found.get("interval", 5)
        pause_s = float(interval) if isinstance(interval, int | float) and interval > 0 else 5.0
        return self._poll(device, pause_s, code.lifetime_s)

    def _poll(self, device: str, pause_s: float, lifetime_s: float) -> Tokens:
        url = self._endpoints.get("token_endpoint")
        form = {"grant_type": _DEVICE_GRANT, "device_code": device, "client_id": self._client_id}
        waited_s = 0.0
        while waited_s < lifetime_s:
            self._sleep(pause_s)
            waited_s += pause_s
            try:
                reply = self._endpoints.post(url, form)
            except Unavailable:
                # RFC 8628, 3.5: poll less often after a timeout.
                pause_s = min(pause_s * 2, 60.0)
                continue
            error = _error_code(reply)
            if error is None:
                return _tokens(_success(reply))
            if error == "slow_down":
                pause_s += 5.0
            elif error != "authorization_pending":
                raise _refusal(read_object(reply.body) or {})
        raise LoginRequired("The code was not used in time.", hint=_AGAIN)

    def renew(self, refresh: str) -> Tokens:
        form = {
            "grant_type": "refresh_token",
            "refresh_token": refresh,
            "client_id": self._client_id,
        }
        reply = self._endpoints.post(self._endpoints.get("token_endpoint"), form)
        if _error_code(reply) == "invalid_grant":
            raise GrantRefused("The identity provider does not renew your sign-in.", hint=_AGAIN)
        return _tokens(_success(reply))

    def revoke(self, *tokens: str) -> bool:
        endpoint = self._endpoints.find("revocation_endpoint")
        if endpoint is None:
            return False
        replies = [
            self._endpoints.post(endpoint, {"token": token, "client_id": self._client_id})
            for token in tokens
        ]
        # Some revoke only refresh tokens and answer unsupported_token_type for others.
        return any(reply.status == 200 for reply in replies)


class _CodeRequest:
    """The secrets of one attempt: `state` against forged answers, others against stolen ones."""

    def __init__(self) -> None:
        self.state = secrets.token_urlsafe(32)
        self.nonce = secrets.token_urlsafe(32)
        self.verifier = secrets.token_urlsafe(64)
        digest = hashlib.sha256(self.verifier.encode()).digest()
        self.challenge = urlsafe_b64encode(digest).rstrip(b"=").decode()


def _claims(token: str) -> Mapping[str, object]:
    parts = token.split(".")
    if len(parts) != 3:
        return {}
    try:
        return read_object(urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4))) or {}
    except ValueError:
        return {}


def _error_code(reply: Reply) -> str | None:
    if reply.status == 200:
        return None
    error = (read_object(reply.body) or {}).get("error")
    return error if isinstance(error, str) else ""


def _success(reply: Reply) -> Mapping[str, object]:
    found = read_object(reply.body)
    if reply.status == 200 and found is not None:
        return found
    if found is None or "error" not in found:
        raise Unavailable(
            f"The identity provider answered {reply.status} and does not say why.",
            hint="Try again in a moment.",
        )
    raise _refusal(found)


_REFUSALS = {
    "access_denied": "Signing in was refused.",
    "expired_token": "The code was not used in time.",
    "invalid_grant": "The identity provider does not accept the code; it may be too old.",
    "invalid_scope": "The identity provider does not know a scope that was asked for.",
}


def _refusal(answer: Mapping[str, object]) -> LatticeError:
    code = str(answer.get("error") or "an unknown error")
    message = _REFUSALS.get(code, f"The identity provider refuses: {code}.")
    description = answer.get("error_description")
    if (
        isinstance(description, str)
        and description
        and code not in {"access_denied", "expired_token"}
    ):
        message += f" It says: {description}"
    return LoginRequired(message, hint=_AGAIN)


def _tokens(found: Mapping[str, object]) -> Tokens:
    access, kind = found.get("access_token"), found.get("token_type")
    if not isinstance(access, str) or not access or str(kind).lower() != "bearer":
        raise Unavailable("The identity provider gave no bearer token.", hint=_AGAIN)
    refresh, lifetime, scope = (found.get(key) for key in ("refresh_token", "expires_in", "scope"))
    return Tokens(
        access=access,
        refresh=refresh if isinstance(refresh, str) and refresh else None,
        lifetime_s=float(lifetime) if isinstance(lifetime, int | float) and lifetime > 0 else None,
        scope=scope if isinstance(scope, str) else "",
    )


def _device_code(found: Mapping[str, object]) -> tuple[DeviceCode, str]:
    page = found.get("verification_uri") or found.get("verification_url")
    user, device = found.get("user_code"), found.get("device_code")
    if not (isinstance(page, str) and isinstance(user, str) and isinstance(device, str)):
        raise Unavailable("The identity provider's device code can't be read.", hint=_AGAIN)
    whole, lifetime = found.get("verification_uri_complete"), found.get("expires_in")
    code = DeviceCode(
        page=page,
        code=user,
        page_with_code=whole if isinstance(whole, str) else None,
        lifetime_s=float(lifetime) if isinstance(lifetime, int | float) else 300.0,
    )
    return code, device
