"""The identity provider of the lab: a handle on `provider.mjs`, and its doors for tests.

Issuer, people and scopes stand in that file. It speaks plain HTTP on the control namespace's
loopback and forgets everything when it stops.
"""

from __future__ import annotations

import base64
import json
import shutil
import signal
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lab.addresses import OIDC_ISSUER, OIDC_PORT
from lab.command import LabError
from lab.layout import Layout
from lab.network import Network
from lab.process import Process
from lab.room import Room
from lab.signin import sign_in
from lab.users import ENGINE_USER

_FOLDER = Path(__file__).parent
_DEVICE = "urn:ietf:params:oauth:grant-type:device_code"

CLIENT_ID = "lattice"
AUDIENCE = "lattice-api"
ROBOT = ("robot", "robot-secret")


class IdentityProvider:
    """`process` is the handle; the methods are what a test asks of a provider."""

    name = "oidc"

    def __init__(
        self, layout: Layout, room: Room, network: Network, *, access_token_ttl_s: int = 600
    ) -> None:
        self._network = network
        self.issuer = OIDC_ISSUER
        node = shutil.which("node") or "/usr/bin/node"
        self.process = Process(
            "oidc",
            [node, str(_FOLDER / "provider.mjs"), str(OIDC_PORT), str(access_token_ttl_s)],
            layout,
            room,
            user=ENGINE_USER,
            prepare=_check_installed,
            probe=lambda: network.answers(f"{OIDC_ISSUER}/.well-known/openid-configuration"),
            stop_signal=signal.SIGKILL,
        )

    @property
    def processes(self) -> list[Process]:
        return [self.process]

    def up(self) -> None:
        self.process.up()

    def down(self) -> None:
        self.process.stop()

    def rotate_keys(self) -> str:
        """Sign with a new key from now on; the old ones stay published. Answers its id."""
        return self._post("/lab/rotate", {})

    def retire_keys(self) -> str:
        """Publish only the newest key from now on."""
        return self._post("/lab/retire", {})

    def set_access_token_ttl(self, seconds: int) -> None:
        self._post(f"/lab/ttl/{seconds}", {})

    def token(self, user: str, scope: str = "openid") -> dict[str, Any]:
        """The answer of the token endpoint for this person, by the device flow."""
        form = {"client_id": CLIENT_ID, "scope": scope}
        device = json.loads(self._post("/device/auth", form))
        with self._network.entered():
            sign_in(user, device["verification_uri_complete"])
        poll = {"grant_type": _DEVICE, "client_id": CLIENT_ID, "device_code": device["device_code"]}
        answer: dict[str, Any] = json.loads(self._post("/token", poll))
        return answer

    def robot_token(self, scope: str = "") -> dict[str, Any]:
        """The answer of the token endpoint for the service account."""
        form = {"grant_type": "client_credentials"} | ({"scope": scope} if scope else {})
        basic = base64.b64encode(":".join(ROBOT).encode()).decode()
        answer: dict[str, Any] = json.loads(
            self._post("/token", form, {"Authorization": f"Basic {basic}"})
        )
        return answer

    def _post(
        self, path: str, form: Mapping[str, str], headers: Mapping[str, str] | None = None
    ) -> str:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        data = urllib.parse.urlencode(form).encode()
        request = urllib.request.Request(self.issuer + path, data, dict(headers or {}))
        with self._network.entered(), opener.open(request, timeout=10) as answer:
            return str(answer.read().decode())


def _check_installed() -> None:
    if not (_FOLDER / "node_modules" / "oidc-provider").is_dir():
        raise LabError(f"oidc-provider is not installed: run `npm ci` in {_FOLDER}")
