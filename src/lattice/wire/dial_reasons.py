"""Why gRPC could not reach a server, in plain words, with what to do.

gRPC reports a failed dial as one long line of its own parts. The forms here were seen with the
version that is installed; a line of another form is shown as it is.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import grpc

_OF_THE_CORE = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.CANCELLED,
)
"""Codes that gRPC sets by itself, with a text of its own."""


class DialReason(NamedTuple):
    """What happened, and what to do; `hint` may be empty."""

    text: str
    hint: str = ""


BROKEN = DialReason("the connection broke")
"""Also what gRPC makes of a server that refuses this side's certificate: it gives no reason."""
_REFUSED_CERTIFICATE = re.compile(r"CERTIFICATE_VERIFY_FAILED(?:: ([a-z][a-z ,()-]*))?")
_FORMS = (
    (
        re.compile(r"WRONG_VERSION_NUMBER|HTTP_REQUEST"),
        DialReason("it does not speak TLS", "Check the port."),
    ),
    (
        re.compile(r"missing selected ALPN property|Trying to connect an http1.x server"),
        DialReason(
            "it does not speak gRPC",
            "This may be the port of REST; gRPC has another one (50051 if not configured).",
        ),
    ),
    (
        re.compile(r"Peer name .* is not in peer certificate|Hostname Verification Check failed"),
        DialReason(
            "its certificate is for another name", "Use a name or an address that is in it."
        ),
    ),
    (
        re.compile(r"unix:.*No such file or directory"),
        DialReason("there is no such socket", "Start what serves it, or correct its path."),
    ),
    (
        re.compile(r"unix:.*Permission denied"),
        DialReason("this user may not open that socket", "Give this user the right to write it."),
    ),
    (re.compile(r"[Cc]onnection refused"), DialReason("connection refused")),
    (
        re.compile(r"DNS resolution failed|errors resolving|address lookup failed"),
        DialReason("its name can't be resolved", "Check the name, and the resolver of this host."),
    ),
    (re.compile(r"No route to host|Network is unreachable"), DialReason("no route to it")),
    (
        re.compile(r"Deadline Exceeded|DEADLINE_EXCEEDED|timed out|[Tt]imeout", re.IGNORECASE),
        DialReason("no answer in time", "A firewall may drop packets to this port."),
    ),
    (
        re.compile(r"Socket closed|Connection reset|Broken pipe|recvmsg|GOAWAY"),
        BROKEN,
    ),
    (
        re.compile(r"^UNIMPLEMENTED$|^Method not found!?$"),
        DialReason("it does not know this call", "Its release is older: update it."),
    ),
    (
        re.compile(r"^RESOURCE_EXHAUSTED$|^Received RST_STREAM with error code 11"),
        DialReason("it has too much to do", "Try again later."),
    ),
    (re.compile(r"Received RST_STREAM|Stream removed|Channel closed"), BROKEN),
    (re.compile(r"^[A-Z]+(?:_[A-Z]+)*$"), DialReason("it answers with an error, without a reason")),
)
_ALL_ADDRESSES = re.compile(
    r"failed to connect to all addresses"
    r"(?:; last error: (?:[A-Z_]+: )?(?:ipv[46]|unix):\S+ ?(.*))?",
    re.DOTALL,
)
_LONGEST = 120


def dial_reason(details: str) -> DialReason:
    """The reason in plain words, or the details as they are."""
    if found := _REFUSED_CERTIFICATE.search(details):
        why = f": {found[1].strip()}" if found[1] else ""
        return DialReason(
            f"its certificate is refused{why}",
            "Name the authority that signed it: bootstrap.ca, or --bootstrap-ca FILE.",
        )
    known = next((reason for form, reason in _FORMS if form.search(details)), None)
    if known is None and (found := _ALL_ADDRESSES.search(details)):
        why = f" ({found[1].strip()[:_LONGEST]})" if found[1] else ""
        return DialReason(f"it can't be reached{why}")
    return known or DialReason(details)


def call_failure(code: grpc.StatusCode, details: str | None) -> str:
    """Why a call ended: what the other side said, or the reason in plain words."""
    if details and code not in _OF_THE_CORE:
        return details
    return dial_reason(details or code.name).text
