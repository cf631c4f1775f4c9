"""Engines that lead a server elsewhere, and addresses it must not take: attack 27.

Everything here is loopback. The other host is 127.0.0.2, where a listener counts who comes.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.eventually import eventually
from tests.fakes.identity_provider import DISCOVERY, KEYS, IdentityProvider
from tests.integration.attacks.attacked_server import HOST, WHOAMI, AttackedServer

ELSEWHERE = "127.0.0.2"
REDIRECTS = [301, 302, 303, 307, 308]
UNWANTED = [
    "file:///etc/passwd",
    "http://169.254.169.254/latest/meta-data",
    "http://[fe80::1]/",
    "http://metadata.example.org/",
    "gopher://127.0.0.1/",
    "ftp://127.0.0.1/",
    "//127.0.0.1/",
    "https://user:password@127.0.0.1/",
]


class Listener:
    """Answers every request alike, and keeps what was asked."""

    def __init__(self, answer: Callable[[], tuple[int, dict[str, str], bytes]]) -> None:
        self._answer = answer
        self.asked: list[str] = []
        self.url = ""

    @contextmanager
    def open(self, host: str) -> Iterator[None]:
        listener = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                listener.asked.append(f"{self.command} {self.path}")
                status, headers, body = listener._answer()
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(body))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            do_POST = do_GET  # noqa: N815 - as the base class calls it

            def log_message(self, *_: Any) -> None: ...

        server = ThreadingHTTPServer((host, 0), Handler)
        self.url = f"http://{host}:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()
            server.server_close()


@pytest.fixture
def elsewhere() -> Iterator[Listener]:
    made = Listener(lambda: (200, {}, b"{}"))
    with made.open(ELSEWHERE):
        yield made


def _wait_asked(idp: IdentityProvider, path: str) -> None:
    """Until a question was asked and answered as the provider answers now."""
    before = idp.asked[path]
    eventually(lambda: idp.asked[path] > before + 1)


@pytest.mark.spec("AUTH-2")
@pytest.mark.parametrize("path", [DISCOVERY, KEYS], ids=["discovery", "keys"])
@pytest.mark.threat("engines")
def test_no_redirect_of_the_provider_is_followed(
    tmp_path: Path, idp: IdentityProvider, elsewhere: Listener, path: str
) -> None:
    """Attack 27: the server asks where it was told to, again and again, and nowhere else."""
    server = AttackedServer(tmp_path, idp)
    location = {"Location": f"{elsewhere.url}/keys"}
    idp.answers[path] = (REDIRECTS[0], location, b"")
    with server.serving(keys=False):
        for status in REDIRECTS:
            idp.answers[path] = (status, location, b"")
            _wait_asked(idp, path)
            assert server.ask(WHOAMI, headers=server.bearer()).status == 503
    assert elsewhere.asked == []


@pytest.mark.spec("AUTH-2")
@pytest.mark.threat("engines")
def test_no_document_leads_to_keys_elsewhere(
    tmp_path: Path, idp: IdentityProvider, elsewhere: Listener
) -> None:
    """Attack 27: keys are taken from the issuer's own origin, and files are no keys."""
    server = AttackedServer(tmp_path, idp)
    (tmp_path / "keys").write_text(json.dumps({"keys": [server.ec.jwk()]}))
    host = idp.issuer.removeprefix("http://")
    named = [
        elsewhere.url + "/keys",
        f"file://{tmp_path}/keys",
        f"http://{host}@{elsewhere.url.removeprefix('http://')}/keys",
        f"{idp.issuer}\\@{elsewhere.url.removeprefix('http://')}/keys",
    ]
    idp.document["jwks_uri"] = named[0]
    with server.serving(keys=False):
        for each in named:
            idp.document["jwks_uri"] = each
            _wait_asked(idp, DISCOVERY)
            assert server.ask(WHOAMI, headers=server.bearer()).status == 503, each
        assert elsewhere.asked == []
        assert not idp.asked[KEYS]
        idp.document["jwks_uri"] = idp.issuer + KEYS
        eventually(lambda: server.ask(WHOAMI, headers=server.bearer()).status == 200)


@pytest.mark.spec("AUTH-2", "OPS-7")
@pytest.mark.parametrize("url", UNWANTED)
@pytest.mark.threat("engines")
def test_an_address_that_is_none_of_the_site_s_stops_the_start(
    tmp_path: Path, idp: IdentityProvider, url: str
) -> None:
    """Attack 27: files, other protocols, and secrets in plain text to any host but this one."""
    server = AttackedServer(tmp_path, idp)
    _use_objects(server, url)
    server.config["api"]["oidc_issuer"] = url
    server.config["api"]["oidc_jwks_uri"] = url
    server.config["quorum"] = {"endpoints": [url]}
    server.config["telemetry"] = {"tsdb_endpoint": url}
    server.config["slurm"]["rest_url"] = url
    refused = ["api.oidc_issuer", "api.oidc_jwks_uri", "objects.endpoint", "quorum.endpoints"]
    if not url.startswith("http://"):
        refused += ["telemetry.tsdb_endpoint", "slurm.rest_url"]
    done = server.run()
    assert done.returncode == 78, done.stderr
    assert [key for key in refused if key not in done.stderr] == []
    assert not idp.asked


def _use_objects(server: AttackedServer, endpoint: str) -> None:
    for name in ("access", "secret"):
        (server.folder / name).write_text("x\n")
        (server.folder / name).chmod(0o600)
    server.config["objects"] = {
        "url": "s3://lattice/logs",
        "endpoint": endpoint,
        "access_key_file": str(server.folder / "access"),
        "secret_key_file": str(server.folder / "secret"),
    }


@pytest.mark.threat("engines")
def test_no_redirect_of_an_engine_is_followed(
    tmp_path: Path, idp: IdentityProvider, elsewhere: Listener
) -> None:
    """Attack 27: the metric store and slurmrestd, each of which redirects.

    The object store is asked for logs of jobs, which are not here without Slurm: that it leads
    nowhere is shown with its adapter.
    """
    status = REDIRECTS[0]
    location = {"Location": f"{elsewhere.url}/latest/meta-data"}
    metrics, slurm = (Listener(lambda: (status, location, b"")) for _ in range(2))
    server = AttackedServer(tmp_path, idp)
    query = "/prometheus/api/v1/query?query=up"
    with metrics.open(HOST), slurm.open(HOST):
        server.config["telemetry"] = {"tsdb_endpoint": metrics.url}
        server.config["slurm"]["rest_url"] = slurm.url
        with server.serving():
            for status in REDIRECTS:  # noqa: B007 - what the engines answer with
                for engine in (metrics, slurm):
                    engine.asked.clear()
                eventually(
                    lambda: server.ask(query, headers=server.bearer()).status,
                    lambda _: metrics.asked and slurm.asked,
                )
    assert elsewhere.asked == []
