"""Checks a live cluster from the outside, as a signed-in user: `scripts/validate URL`.

    scripts/validate https://lattice1.example.com:8080
    scripts/validate URL --no-job         leave out what submits a job
    scripts/validate URL --foreign 4711   a job of another user: it must look absent
    scripts/validate URL --ca FILE        trust this authority

The token is that of `lattice login`, or LATTICE_TOKEN. Every check is a line with ✓, or with ✗ and
the reason; — is what this run leaves out. The exit code is 0 only if no check has failed.

It changes nothing but this: it submits two jobs of a second or two, and ends them.
`scripts.validation_checks` has the checks on the wire, `scripts.validation_jobs` those of a job.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import socket
import ssl
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from lattice.base.errors import LatticeError
from lattice.base.text import inert
from lattice.client.blocking_client import SyncClient
from lattice.client.settings import Settings
from lattice.client.tokens import token_source, usable_token

_TIMEOUT_S = 15.0


class Fault(Exception):
    """Why a check has failed."""


class Skipped(Exception):
    """Why a check does not apply here."""


@dataclass(frozen=True)
class Answer:
    """One answer of the server. Names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        try:
            return json.loads(self.body)
        except ValueError:
            raise Fault(f"the answer {self.status} is no JSON: {self.body[:60]!r}") from None

    @property
    def error(self) -> dict[str, Any]:
        """The error without the id of the request, which differs each time."""
        found = self.json.get("error")
        if not isinstance(found, dict):
            raise Fault(f"the answer {self.status} has no error: {self.body[:60]!r}")
        return {name: value for name, value in found.items() if name != "request_id"}


@dataclass
class Site:
    """The cluster under test, and what earlier checks have learned."""

    url: str
    client: SyncClient
    token: str
    context: ssl.SSLContext
    foreign: str = ""
    learned: dict[str, Any] = field(default_factory=dict)

    @property
    def encrypts(self) -> bool:
        return self.url.startswith("https:")

    @property
    def address(self) -> tuple[str, int]:
        parts = urlsplit(self.url)
        return parts.hostname or "", parts.port or (443 if self.encrypts else 80)

    def ask(
        self,
        path: str,
        method: str = "GET",
        *,
        token: str | None = None,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
    ) -> Answer:
        """Send one request on its own connection. `token` "" sends none; None the person's."""
        sent = dict(headers or {})
        bearer = self.token if token is None else token
        if bearer:
            sent.setdefault("Authorization", f"Bearer {bearer}")
        host, port = self.address
        connection: http.client.HTTPConnection = (
            http.client.HTTPSConnection(host, port, timeout=_TIMEOUT_S, context=self.context)
            if self.encrypts
            else http.client.HTTPConnection(host, port, timeout=_TIMEOUT_S)
        )
        try:
            connection.request(method, path, body, sent)
            reply = connection.getresponse()
            found = {name.lower(): value for name, value in reply.getheaders()}
            return Answer(reply.status, found, reply.read())
        except (OSError, http.client.HTTPException) as error:
            raise Fault(f"{method} {path}: {type(error).__name__}: {error}") from None
        finally:
            connection.close()

    def plain(self) -> socket.socket:
        return socket.create_connection(self.address, timeout=_TIMEOUT_S)


Act: TypeAlias = Callable[[Site], str]


def expect(found: object, wanted: object, what: str) -> None:
    """Raise `Fault` if they differ."""
    if found != wanted:
        raise Fault(f"{what} is {str(found)[:120]}, not {str(wanted)[:120]}")


def run(site: Site, checks: Sequence[tuple[str, Act]], write: Callable[[str], None]) -> int:
    """Run all checks in order, a line each; returns how many have failed."""
    failed = 0
    for title, act in checks:
        try:
            sign, more = "✓", act(site)
        except Skipped as reason:
            sign, more = "—", str(reason)
        except Fault as fault:
            sign, more = "✗", str(fault)
        except LatticeError as error:
            sign, more = "✗", error.message
        except Exception as defect:  # noqa: BLE001 - one check must not hide the others
            sign, more = "✗", f"{type(defect).__name__}: {defect}"
        failed += sign == "✗"
        write(f"{sign} {title}" + (f": {inert(more)}" if more else ""))
    return failed


def site_at(options: argparse.Namespace) -> Site:
    """Raises `LatticeError` without a token or with a wrong address."""
    settings = Settings.load(os.environ, api_url=options.url, ca=options.ca)
    tokens = token_source(settings, environment=os.environ)
    token = usable_token(tokens, settings.urls)
    client = SyncClient(settings, tokens=tokens)
    context = ssl.create_default_context(cafile=settings.ca)
    return Site(settings.urls[0], client, token or "", context, options.foreign)


def main(arguments: Sequence[str] | None = None) -> int:
    from scripts.validation_checks import CHECKS, LAST  # noqa: PLC0415 - they import this module
    from scripts.validation_jobs import JOB_CHECKS  # noqa: PLC0415

    parser = argparse.ArgumentParser(prog="validate", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("url")
    parser.add_argument("--no-job", action="store_true", help="leave out what submits a job")
    parser.add_argument("--foreign", default="", help="id of a job of another user")
    parser.add_argument("--ca", help="trust this authority, PEM")
    options = parser.parse_args(arguments)
    try:
        site = site_at(options)
    except LatticeError as error:
        print(f"{error.message}\n{error.hint or ''}".strip(), file=sys.stderr)
        return 78
    jobs = () if options.no_job else JOB_CHECKS
    checks = (*CHECKS, *jobs, *LAST)
    failed = run(site, checks, lambda line: print(line, flush=True))
    print(f"{len(checks)} checks, {failed} failed")
    return 1 if failed else 0
