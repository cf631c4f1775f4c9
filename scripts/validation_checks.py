"""The checks of `scripts/validate` that need no job: TLS, sign-in, errors, hostile requests."""

from __future__ import annotations

import base64
import json
import socket
import ssl
import warnings

from lattice import __version__
from scripts.validation import Act, Answer, Fault, Site, Skipped, expect

ABSENT = ("999999998", "999999999")
_ENGINES = {"slurm", "accounting", "state", "objects", "metrics"}
UPGRADE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": base64.b64encode(b"0123456789abcdef").decode(),
    "Sec-WebSocket-Protocol": "lattice.attach.v1",
}


def certificate(site: Site) -> str:
    if not site.encrypts:
        raise Skipped("the address is plain HTTP")
    with site.context.wrap_socket(site.plain(), server_hostname=site.address[0]) as line:
        return f"{line.version()}, {dict(each[0] for each in line.getpeercert()['subject'])}"  # type: ignore[index, misc]


def no_old_tls(site: Site) -> str:
    if not site.encrypts:
        raise Skipped("the address is plain HTTP")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = ssl.TLSVersion.TLSv1
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    context.set_ciphers("ALL:@SECLEVEL=0")
    try:
        with context.wrap_socket(site.plain()) as line:
            raise Fault(f"{line.version()} is accepted")
    except OSError:
        return "TLS 1.1 is refused"


def plain_on_tls(site: Site) -> str:
    if not site.encrypts:
        raise Skipped("the address is plain HTTP")
    with site.plain() as line:
        line.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        found = _read(line)
    if b"https" not in found.lower():
        raise Fault(f"plain HTTP gets no sentence that names https: {found[:60]!r}")
    return ""


def _read(line: socket.socket) -> bytes:
    found = b""
    try:
        while len(found) < 4096 and (part := line.recv(4096)):
            found += part
    except OSError:
        pass
    return found


def discovery(site: Site) -> str:
    found = site.ask("/v1/auth/discovery", token="").json
    if not {"idp_url", "client_id", "issuer"} <= found.keys():
        raise Fault(f"it has only {sorted(found)}")
    return str(found["issuer"] or "no identity provider")


def healthy(site: Site) -> str:
    answer = site.ask("/healthz", token="")
    expect(answer.status, 200, "the status")
    expect(answer.json["status"], "ok", f"health ({answer.json.get('note', '')})")
    return str(answer.json["version"])


def engines(site: Site) -> str:
    found = site.ask("/healthz", token="").json["engines"]
    expect(set(found), _ENGINES, "the list of engines")
    away = {name: each["reason"] for name, each in found.items() if each["state"] == "away"}
    expect(away, {}, "away")
    return ", ".join(f"{name} {each['state']}" for name, each in found.items())


def ready(site: Site) -> str:
    answer = site.ask("/readyz", token="")
    expect((answer.status, answer.json["ready"]), (200, True), "readiness")
    return ""


def no_address_in_health(site: Site) -> str:
    for path in ("/healthz", "/readyz"):
        body = site.ask(path, token="").body
        for word in (b"://", b"unix:", b"/run/", b"127.0.0.1"):
            if word in body:
                raise Fault(f"{path} shows {word.decode()}")
    return ""


def same_version(site: Site) -> str:
    expect(site.ask("/healthz", token="").json["version"], __version__, "the server's version")
    return ""


def _refused(answer: Answer, status: int, code: str) -> None:
    expect((answer.status, answer.error["code"]), (status, code), "the answer")


def without_token(site: Site) -> str:
    answers = [site.ask(path, token="") for path in ("/v1/allocations", "/v1/nodes", "/metrics")]
    for each in answers:
        _refused(each, 401, "login_required")
        expect(each.error["message"], "Not logged in.", "the message")
        expect(each.headers.get("www-authenticate"), 'Bearer realm="lattice"', "WWW-Authenticate")
    return "Not logged in."


def forged_tokens(site: Site) -> str:
    def part(value: object) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")

    claims = {"sub": "root", "preferred_username": "root", "scope": "admin", "exp": 4_000_000_000}
    forged = [f"{part({'alg': 'none'})}.{part(claims)}.", "x.y.z", "garbage"]
    forged += [f"{part({'alg': 'HS256', 'kid': '../../dev/null'})}.{part(claims)}.{part('s')}"]
    if site.token.count(".") == 2:
        head, _, signature = site.token.split(".")
        forged.append(f"{head}.{part(claims)}.{signature}")
    for each in forged:
        _refused(site.ask("/v1/auth/whoami", token=each), 401, "login_required")
    return f"{len(forged)} forged tokens"


def token_in_query(site: Site) -> str:
    answer = site.ask(f"/v1/allocations?access_token={site.token}", token="")
    _refused(answer, 401, "login_required")
    return ""


def whoami(site: Site) -> str:
    found = site.client.whoami()
    site.learned["user"] = found.user.value
    return f"{found.user.value or found.sub}, {found.role.value}"


def absent_ids(site: Site) -> str:
    asked = [*ABSENT, *filter(None, [site.foreign])]
    for path in ("", "/logs", "/metrics", "/diagnostics", "/report"):
        answers = {id_: site.ask(f"/v1/allocations/{id_}{path}") for id_ in asked}
        bodies = set()
        for id_, each in answers.items():
            expect(each.status, 404, f"the status of {id_}{path}")
            bodies.add(json.dumps(each.error).replace(id_, "ID"))
        expect(len(bodies), 1, f"the number of different answers for {path or 'the id'}")
    return "a foreign one too" if site.foreign else "absent ids; name a foreign one with --foreign"


def bad_ids(site: Site) -> str:
    for id_ in ("0x1", "%2e%2e%2fetc%2fpasswd", "1%00", "1;id", "-1"):
        status = site.ask(f"/v1/allocations/{id_}").status
        if status not in {400, 404}:
            raise Fault(f"{id_}: {status}")
    return ""


def unknown_route(site: Site) -> str:
    for path in ("/v1/nothing", "/v2/allocations", "/admin", "/api/allocations"):
        answer = site.ask(path)
        expect(answer.status, 404, path)
        expect(answer.error["code"], "not_found", path)
    return ""


def wrong_method(site: Site) -> str:
    for method in ("DELETE", "PATCH", "TRACE"):
        status = site.ask("/v1/allocations", method).status
        if status not in {400, 405, 501}:
            raise Fault(f"{method}: {status}")
    return ""


def two_prefixes(site: Site) -> str:
    for path in ("/v1/auth/discovery", "/v1/auth/whoami", "/v1/nodes"):
        one, other = site.ask(path), site.ask(f"/api{path}")
        expect((other.status, sorted(other.json)), (one.status, sorted(one.json)), f"/api{path}")
    return ""


def openapi(site: Site) -> str:
    found = site.ask("/v1/openapi.json", token="").json
    if len(found["paths"]) < 30:
        raise Fault(f"only {len(found['paths'])} paths are described")
    return f"{len(found['paths'])} paths"


def metrics_need_a_role(site: Site) -> str:
    expect(site.ask("/metrics", token="").status, 401, "the status without a token")
    status = site.ask("/metrics").status
    admitted = _operates(site)
    expect(status, 200 if admitted else 403, "the status of this person")
    return ""


def _operates(site: Site) -> bool:
    return site.client.whoami().role.value in {"SystemAdmin", "Operator"}


def doctor(site: Site) -> str:
    answer = site.ask("/v1/admin/doctor")
    if not _operates(site):
        _refused(answer, 403, "permission_refused")
        return "refused, as this person is no operator"
    failed = [each["id"] for each in answer.json["checks"] if each["state"] == "failed"]
    expect(failed, [], "failed")
    return f"{answer.json['counts']['ok']} checks are ok"


def lists(site: Site) -> str:
    live, past = site.client.allocations(), site.client.history(limit=5)
    own = {each.user for each in (*live.allocations, *past.allocations)}
    if site.learned.get("user"):
        expect(own - {site.learned["user"]}, set(), "foreign owners in one's own lists")
    return f"{len(live.allocations)} allocations, {len(past.allocations)} of the past"


def nodes(site: Site) -> str:
    found = site.client.nodes().nodes
    if not found:
        raise Fault("the cluster has no nodes")
    linked = sum(each.agent is not None and each.agent.link.value == "linked" for each in found)
    return f"{len(found)}, {linked} with a linked agent"


def evil_origin(site: Site) -> str:
    for origin in ("https://evil.example", "null", f"{site.url}.evil.example"):
        answer = site.ask(
            f"/v1/allocations/{ABSENT[0]}/attach", headers={**UPGRADE, "Origin": origin}
        )
        expect(answer.status, 403, f"origin {origin}")
    return ""


def attach_without_upgrade(site: Site) -> str:
    expect(site.ask(f"/v1/allocations/{ABSENT[0]}/attach").status, 405, "the status")
    return ""


def attach_without_token(site: Site) -> str:
    path = f"/v1/allocations/{ABSENT[0]}/attach"
    expect(site.ask(path, token="", headers=UPGRADE).status, 401, "the status")
    return ""


def wrong_ticket(site: Site) -> str:
    offered = f"lattice.attach.v1, lattice.ticket.{'0' * 64}"
    headers = {**UPGRADE, "Sec-WebSocket-Protocol": offered}
    path = f"/v1/allocations/{ABSENT[0]}/attach"
    status = site.ask(path, token="", headers=headers).status
    if status not in {401, 403}:
        raise Fault(f"an invented ticket gets {status}")
    return ""


def cross_site(site: Site) -> str:
    headers = {"Sec-Fetch-Site": "cross-site", "Content-Type": "application/json"}
    answer = site.ask(f"/v1/allocations/{ABSENT[0]}/cancel", "POST", headers=headers, body=b"{}")
    expect(answer.status, 403, "the status")
    return ""


def bad_bodies(site: Site) -> str:
    path = "/v1/locks/unlock"
    plain = {"Content-Type": "application/json"}
    for body, headers in ((b"{", plain), (b"[" * 60_000, plain), (b"a=1", {})):
        status = site.ask(path, "POST", headers=headers, body=body).status
        if status not in {400, 403}:
            raise Fault(f"{body[:8]!r}: {status}")
    return ""


def large_head(site: Site) -> str:
    try:
        status = site.ask("/healthz", headers={"X-Large": "x" * 200_000}).status
    except Fault:
        # Refused while it was still being sent; then the client may not read the answer.
        expect(site.ask("/healthz", token="").status, 200, "the next request")
        return "the connection is closed"
    if not 400 <= status < 500:
        raise Fault(f"200 kB of headers get {status}")
    return str(status)


def no_redirect(site: Site) -> str:
    for path in ("/healthz/", "//evil.example", "/v1/allocations/"):
        status = site.ask(path, headers={"Host": "evil.example"}).status
        if 300 <= status < 400:
            raise Fault(f"{path} is redirected: {status}")
    return ""


def security_headers(site: Site) -> str:
    found = site.ask("/healthz", token="").headers
    for name in ("content-security-policy", "x-content-type-options", "x-request-id"):
        if name not in found:
            raise Fault(f"{name} is missing")
    return ""


def rate_limit(site: Site) -> str:
    """Ten comparisons a minute by default; the next is refused with the seconds to wait."""
    path = f"/v1/compare?ids={','.join(ABSENT)}"
    for _ in range(60):
        answer = site.ask(path)
        if answer.status == 429:
            wait_s = int(answer.headers.get("retry-after", "0"))
            if wait_s < 1:
                raise Fault("429 has no Retry-After")
            return f"Retry-After: {wait_s}"
    raise Fault("60 comparisons within a moment are not limited")


CHECKS: tuple[tuple[str, Act], ...] = (
    ("the certificate is trusted", certificate),
    ("TLS below 1.2 is refused", no_old_tls),
    ("plain HTTP at the TLS port gets a sentence", plain_on_tls),
    ("discovery is public", discovery),
    ("health is ok", healthy),
    ("every engine answers", engines),
    ("the server is ready", ready),
    ("public answers show no address", no_address_in_health),
    ("client and server have one version", same_version),
    ("no token: 401 and a fixed message", without_token),
    ("forged tokens: 401", forged_tokens),
    ("a token in the address is ignored", token_in_query),
    ("whoami", whoami),
    ("absent and foreign ids are one 404", absent_ids),
    ("ids that are none are refused", bad_ids),
    ("unknown routes: 404 as JSON", unknown_route),
    ("wrong methods are refused", wrong_method),
    ("/v1 and /api/v1 answer the same", two_prefixes),
    ("the interface is described", openapi),
    ("/metrics needs a role", metrics_need_a_role),
    ("doctor needs a role, and finds nothing broken", doctor),
    ("lists show one's own work alone", lists),
    ("nodes", nodes),
    ("terminals: other origins are refused", evil_origin),
    ("terminals: 405 without an upgrade", attach_without_upgrade),
    ("terminals: 401 without a token", attach_without_token),
    ("terminals: an invented ticket is refused", wrong_ticket),
    ("a page of another site can't act", cross_site),
    ("broken bodies are refused", bad_bodies),
    ("too large a head is refused", large_head),
    ("nothing is redirected", no_redirect),
    ("security headers are there", security_headers),
)
LAST: tuple[tuple[str, Act], ...] = (("a rate limit has Retry-After", rate_limit),)
"""After all others: it uses up a minute's comparisons."""
