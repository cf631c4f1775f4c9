"""An identity provider for tests: a real HTTP server on loopback that serves a discovery document
and a key set, counts who asks, and misbehaves on demand.

Tokens are signed here with `cryptography` alone, so that the library under test never vouches for
itself, and any bytes can be signed, malformed ones too.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

DISCOVERY = "/.well-known/openid-configuration"
KEYS = "/keys"
AUDIENCE = "lattice"


def b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def _number(value: int) -> str:
    return b64(value.to_bytes((value.bit_length() + 7) // 8, "big"))


@dataclass(frozen=True, slots=True)
class RsaSigner:
    """Signs RS256."""

    kid: str
    key: rsa.RSAPrivateKey
    algorithm: str = "RS256"

    @classmethod
    def make(cls, kid: str, bits: int = 2048) -> RsaSigner:
        return cls(kid, rsa.generate_private_key(65537, bits))

    def sign(self, data: bytes) -> bytes:
        return self.key.sign(data, padding.PKCS1v15(), hashes.SHA256())

    def jwk(self) -> dict[str, Any]:
        numbers = self.key.public_key().public_numbers()
        found = {"kty": "RSA", "kid": self.kid, "use": "sig", "alg": "RS256"}
        return {**found, "n": _number(numbers.n), "e": _number(numbers.e)}


@dataclass(frozen=True, slots=True)
class EcSigner:
    """Signs ES256 (or, with another curve, what the server must not accept)."""

    kid: str
    key: ec.EllipticCurvePrivateKey
    algorithm: str = "ES256"

    @classmethod
    def make(cls, kid: str, curve: ec.EllipticCurve | None = None) -> EcSigner:
        return cls(kid, ec.generate_private_key(curve or ec.SECP256R1()))

    def sign(self, data: bytes) -> bytes:
        size = (self.key.curve.key_size + 7) // 8
        r, s = decode_dss_signature(self.key.sign(data, ec.ECDSA(hashes.SHA256())))
        return r.to_bytes(size, "big") + s.to_bytes(size, "big")

    def jwk(self) -> dict[str, Any]:
        size = (self.key.curve.key_size + 7) // 8
        numbers = self.key.public_key().public_numbers()
        names = {"secp256r1": "P-256", "secp384r1": "P-384"}
        found = {"kty": "EC", "kid": self.kid, "use": "sig", "crv": names[self.key.curve.name]}
        x, y = numbers.x.to_bytes(size, "big"), numbers.y.to_bytes(size, "big")
        return {**found, "x": b64(x), "y": b64(y)}


@dataclass(frozen=True, slots=True)
class HmacSigner:
    """Signs HS256."""

    secret: bytes
    kid: str = "shared"
    algorithm: str = "HS256"

    def sign(self, data: bytes) -> bytes:
        return hmac.new(self.secret, data, hashlib.sha256).digest()


Signer = RsaSigner | EcSigner | HmacSigner


def signed(signer: Signer, header: bytes | Mapping[str, Any], payload: bytes) -> str:
    """A compact token over exactly these bytes."""
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    data = f"{b64(raw)}.{b64(payload)}"
    return f"{data}.{b64(signer.sign(data.encode('ascii')))}"


class HandClock:
    """A clock that stands still until it is moved."""

    def __init__(self, start: datetime | None = None) -> None:
        self._start = start or datetime(2026, 11, 15, 12, 0, 0, tzinfo=UTC)
        self.passed_s = 0.0

    def now(self) -> datetime:
        return datetime.fromtimestamp(self._start.timestamp() + self.passed_s, UTC)

    def monotonic(self) -> float:
        return 1000.0 + self.passed_s


class IdentityProvider:
    """The server's state; change it while it runs."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.asked: Counter[str] = Counter()
        self.asked_at: list[tuple[str, float]] = []
        """The path and the moment of each question, by the monotonic clock."""
        self.signers: list[RsaSigner | EcSigner] = []
        self.delay_s = 0.0
        self.free = threading.Event()
        """Cleared, nothing is answered until it is set."""
        self.free.set()
        self.answers: dict[str, tuple[int, dict[str, str], bytes]] = {}
        self.document: dict[str, Any] = {"issuer": self.issuer, "jwks_uri": self.issuer + KEYS}

    @property
    def issuer(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def claims(self, clock: HandClock, **other: Any) -> dict[str, Any]:
        """Good ones; a value of None leaves the claim out."""
        now = int(clock.now().timestamp())
        good = {"iss": self.issuer, "aud": AUDIENCE, "sub": "u-1", "iat": now, "exp": now + 300}
        return {name: value for name, value in {**good, **other}.items() if value is not None}

    def token(self, signer: Signer, clock: HandClock, **claims: Any) -> str:
        """A good token, or one with these claims instead."""
        header = {"alg": signer.algorithm, "kid": signer.kid, "typ": "JWT"}
        return signed(signer, header, json.dumps(self.claims(clock, **claims)).encode())

    def answer(self, path: str) -> tuple[int, dict[str, str], bytes]:
        time.sleep(self.delay_s)
        assert self.free.wait(120), "nobody let it answer"
        if path in self.answers:
            return self.answers[path]
        if path == DISCOVERY:
            return 200, {}, json.dumps(self.document).encode()
        if path == KEYS:
            return 200, {}, json.dumps({"keys": [each.jwk() for each in self.signers]}).encode()
        return 404, {}, b"nothing here"


@contextmanager
def running_provider() -> Iterator[IdentityProvider]:
    """A provider on a free port, stopped at the end."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    provider = IdentityProvider(server.server_address[1])

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            provider.asked[self.path] += 1
            provider.asked_at.append((self.path, time.monotonic()))
            status, headers, body = provider.answer(self.path)
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None: ...

        def handle(self) -> None:
            try:
                super().handle()
            except ConnectionError:
                self.close_connection = True

    server.RequestHandlerClass = Handler
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield provider
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
