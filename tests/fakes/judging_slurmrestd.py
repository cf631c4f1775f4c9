"""A slurmrestd with slurmctld behind it that judge tokens as the real ones of two releases do."""

from __future__ import annotations

import base64
import hmac
import json
from collections.abc import Mapping
from typing import Any

from lattice.adapters.slurm.http_client import RestReply
from lattice.adapters.slurm.rest import TOKEN_HEADER, USER_HEADER
from tests.fakes.identity_provider import b64

SLURM_USER = "slurm"
PATH = "/slurm/v0.0.42/"
_LISTS = ("jobs", "nodes", "diag", "licenses")


def slurm_token(key: bytes, claims: Mapping[str, Any] | bytes, algorithm: str = "HS256") -> str:
    """A token that whoever has this key could make."""
    body = claims if isinstance(claims, bytes) else json.dumps(claims).encode()
    signed = f"{b64(json.dumps({'alg': algorithm, 'typ': 'JWT'}).encode())}.{b64(body)}"
    signature = b"" if algorithm == "none" else hmac.digest(key, signed.encode(), "sha256")
    return f"{signed}.{b64(signature)}"


class JudgingSlurmrestd:
    """The port `Exchange`."""

    reconnects = 0

    def __init__(self, key: bytes, now: int, *, release: str = "26.05") -> None:
        self.key = key
        self.now = now
        self.release = release
        self.is_local = False
        """It has `rest_auth/local`: it answers anything as its own user."""
        self.is_away = False
        """slurmctld is."""
        self.lists = _LISTS
        self.asked: list[tuple[str, Mapping[str, str]]] = []

    async def get(self, target: str, headers: Mapping[str, str], limit_bytes: int) -> RestReply:  # noqa: ARG002
        self.asked.append((target, headers))
        token, user = headers.get(TOKEN_HEADER, ""), headers.get(USER_HEADER, "")
        if not (self.is_local or (token and user)):
            return RestReply(401, b"Authentication failure")
        if target == "/openapi/v3":
            # It passes the token on to nobody for this one.
            return _json(200, {"paths": {PATH + each: {} for each in self.lists}})
        if self.is_away:
            raise TimeoutError
        if self.is_local or self._verifies(token, user):
            return _json(200, {"licenses": [], "errors": [], "meta": {}})
        if self.release == "22.05":
            problem = {"error_number": -1, "error": "slurmctld unable to load licenses"}
            return _json(500, {"meta": {}, "errors": [problem]})
        problem = {"error_number": 1007, "error": "Protocol authentication error"}
        return _json(511, {"licenses": [], "errors": [problem], "meta": {}})

    async def aclose(self) -> None:
        pass

    def _verifies(self, token: str, user: str) -> bool:
        try:
            signed, _, signature = token.rpartition(".")
            head, _, body = signed.partition(".")
            algorithm, claims = json.loads(_unb64(head))["alg"], json.loads(_unb64(body))
            proof = _unb64(signature)
        except (ValueError, KeyError):
            return False
        if algorithm != "HS256" or proof != hmac.digest(self.key, signed.encode(), "sha256"):
            return False
        end = claims.get("exp")
        if type(end) is not int or end < self.now:
            return False
        named = claims.get("sun") or claims.get("username")
        return named == user or named in {"root", SLURM_USER}


def _unb64(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "==")


def _json(status: int, value: Mapping[str, Any]) -> RestReply:
    return RestReply(status, json.dumps(value).encode())
