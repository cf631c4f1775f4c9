"""A page of another site that acts in its visitor's name, or frames an answer: attack 30."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.attacks.attacked_server import WHOAMI, AttackedServer

FOREIGN = ["cross-site", "same-site", "Cross-Site", "CROSS-SITE"]
OWN = ["same-origin", "none"]
LOCK: dict[str, Any] = {"kind": "user", "target": "mallory", "reason": "attack 30"}
REFUSAL = "A page of another site may not do this."


@pytest.fixture
def admin(server: AttackedServer) -> dict[str, str]:
    return server.bearer("root-1", scope="admin")


def _mutations(server: AttackedServer) -> Iterator[tuple[str, str]]:
    """Every route that changes something, as the server itself describes them."""
    for path, offered in server.ask("/v1/openapi.json").json["paths"].items():
        for method in offered.keys() & {"post", "put", "patch", "delete"}:
            yield method.upper(), re.sub(r"\{[^}]+\}", "1", path)


@pytest.mark.story
@pytest.mark.spec("AUTH-6")
@pytest.mark.parametrize("prefix", ["", "/api"])
@pytest.mark.threat("cross-site")
def test_every_mutation_refuses_a_page_of_another_site(
    server: AttackedServer, admin: dict[str, str], prefix: str
) -> None:
    """Attack 30, with a token that would be good, and before any body is read."""
    routes = list(_mutations(server))
    assert {("POST", "/v1/allocations"), ("POST", "/v1/locks")} <= set(routes)
    for method, path in routes:
        for site in FOREIGN:
            answer = server.ask(prefix + path, method, {**admin, "Sec-Fetch-Site": site}, LOCK)
            assert answer.status == 403, (method, path, site)
            assert answer.json["error"]["message"] == REFUSAL


@pytest.mark.spec("AUTH-6")
@pytest.mark.parametrize("kind", ["application/json", "text/plain", "multipart/form-data"])
@pytest.mark.parametrize("mode", ["cors", "no-cors", "navigate"])
def test_nothing_happens(
    server: AttackedServer, admin: dict[str, str], kind: str, mode: str
) -> None:
    """Attack 30: what the page asked for is not there afterwards."""
    page = {
        "Origin": "https://evil.example",
        "Sec-Fetch-Site": "cross-site",
        "Sec-Fetch-Mode": mode,
        "Content-Type": kind,
    }
    assert server.ask("/v1/locks", "POST", {**admin, **page}, LOCK).status == 403
    assert server.ask("/v1/locks", headers=admin).json["locks"] == []


@pytest.mark.spec("AUTH-6")
@pytest.mark.parametrize("site", ["", *OWN])
def test_a_page_of_the_server_s_own_and_a_program_may(
    server: AttackedServer, admin: dict[str, str], site: str
) -> None:
    """What the refusals are measured by."""
    headers = {**admin, **({"Sec-Fetch-Site": site} if site else {})}
    assert server.ask("/v1/locks", "POST", headers, LOCK).status == 200
    locked = server.ask("/v1/locks", headers=admin).json["locks"]
    assert [each["target"] for each in locked] == ["mallory"]
    unlock = {"kind": "user", "target": "mallory"}
    assert server.ask("/v1/locks/unlock", "POST", headers, unlock).status == 200
    assert server.ask("/v1/locks", headers=admin).json["locks"] == []


@pytest.mark.spec("AUTH-6")
@pytest.mark.threat("cross-site")
def test_a_browser_s_cookie_is_nobody(server: AttackedServer, admin: dict[str, str]) -> None:
    """Attack 30: what a browser sends by itself opens nothing."""
    token = admin["Authorization"].removeprefix("Bearer ")
    cookies = f"token={token}; access_token={token}; Authorization=Bearer {token}"
    assert server.ask("/v1/locks", "POST", {"Cookie": cookies}, LOCK).status == 401
    assert server.ask(f"{WHOAMI}?access_token={token}").status == 401


@pytest.mark.spec("AUTH-6")
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_no_mutation_is_done_by_a_link(
    server: AttackedServer, admin: dict[str, str], method: str
) -> None:
    """Attack 30: a page can always make its visitor's browser GET."""
    for _, path in _mutations(server):
        answer = server.ask(f"{path}?kind=all&reason=x", method, admin)
        assert answer.status in {200, 404, 405, 424, 503}, path
    assert server.ask("/v1/locks", headers=admin).json["locks"] == []


def _framed(headers: str) -> bool:
    return "frame-ancestors 'none'" not in headers or "nosniff" not in headers


@pytest.mark.spec("AUTH-6")
@pytest.mark.threat("cross-site")
def test_no_answer_can_be_framed(server: AttackedServer, admin: dict[str, str]) -> None:
    """Attack 30, clickjacking: whatever the status, and on every route that is described."""
    asked: list[tuple[str, str, dict[str, str]]] = [
        ("GET", "/healthz", {}),
        ("GET", "/nowhere", {}),
        ("GET", WHOAMI, {}),
        ("GET", WHOAMI, {"Authorization": "Bearer x"}),
        ("DELETE", WHOAMI, admin),
        ("POST", "/v1/locks", admin),
        ("POST", "/v1/locks", {**admin, "Sec-Fetch-Site": "cross-site"}),
        ("POST", "/v1/locks", {**admin, "Content-Length": "999999999"}),
        ("GET", WHOAMI, {f"X-{number}": "y" for number in range(200)}),
    ]
    described = server.ask("/v1/openapi.json").json["paths"]
    asked += [
        ("GET", re.sub(r"\{[^}]+\}", "1", path), admin)
        for path, offered in described.items()
        if "get" in offered
    ]
    statuses = set()
    for method, path, headers in asked:
        answer = server.ask(path, method, headers)
        statuses.add(answer.status)
        assert not _framed(str(answer.headers)), (method, path, answer.status)
    assert {200, 400, 401, 403, 404, 405, 413, 431, 503} <= statuses


@pytest.mark.spec("AUTH-6", "ATTACH-8")
@pytest.mark.parametrize(
    ("lines", "status"),
    [((), b"400"), (("Origin: https://evil.example",), b"403")],
    ids=["no protocol", "another's page"],
)
def test_no_refused_upgrade_can_be_framed(
    server: AttackedServer, lines: tuple[str, ...], status: bytes
) -> None:
    head = [
        "GET /v1/allocations/1/attach HTTP/1.1",
        "Host: x",
        "Upgrade: websocket",
        "Connection: Upgrade",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
        *lines,
    ]
    with server.dial(server.rest_port) as line:
        line.sendall("\r\n".join([*head, "", ""]).encode())
        answer = line.recv(65_536)
    assert answer.split(b" ")[1] == status
    assert not _framed(answer.decode("latin-1"))
