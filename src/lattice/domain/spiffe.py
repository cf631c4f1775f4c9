"""SPIFFE IDs of nodes, and the addresses of a Workload API. Pure.

A site chooses the path under which SPIRE names nodes: `/lattice/node/{node}`. Only an ID of the
configured trust domain with exactly this path names a node; everything else is refused.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from lattice.domain.peer import BadName, checked_name

SCHEME = "spiffe"
DEFAULT_PATH = "/lattice/node/{node}"
_NODE = "{node}"
_DOMAIN = re.compile(r"[a-z0-9._-]{1,255}", re.ASCII)
_SEGMENT = re.compile(r"[A-Za-z0-9._-]+", re.ASCII)
_LARGEST = 2048


class BadTemplate(ValueError):
    """Not a path, a trust domain or an address of SPIFFE; the text gives the reason."""


def checked_domain(name: str) -> str:
    """The name of a trust domain, as given; raises `BadTemplate`."""
    if not _DOMAIN.fullmatch(name):
        raise BadTemplate(
            f"{name[:80]!r} is no trust domain: small letters, digits, '.', '_' and '-'"
        )
    return name


@dataclass(frozen=True, slots=True)
class NodePath:
    """The path of a node's SPIFFE ID, with `{node}` once. Raises `BadTemplate`."""

    template: str = DEFAULT_PATH

    def __post_init__(self) -> None:
        shown = repr(self.template[:80])
        if self.template.count(_NODE) != 1:
            raise BadTemplate(f"{shown} must have {{node}} once")
        first, *segments = self.template.replace(_NODE, "node").split("/")
        if first or any(not _SEGMENT.fullmatch(each) or each in {".", ".."} for each in segments):
            raise BadTemplate(f"{shown} is no path of a SPIFFE ID, such as {DEFAULT_PATH}")

    def of(self, node: str) -> str:
        """The path of this node; raises `BadName`."""
        return self.template.replace(_NODE, checked_name(node))

    def node_of(self, path: str) -> str:
        """The node that a path names; raises `BadName`."""
        before, _, after = self.template.partition(_NODE)
        if not (path.startswith(before) and path.endswith(after)):
            raise BadName(f"its path is not {self.template}")
        return checked_name(path[len(before) : len(path) - len(after)])


@dataclass(frozen=True, slots=True)
class NodeIds:
    """Which SPIFFE IDs name nodes: those of one trust domain with one path."""

    domain: str
    path: NodePath

    def node_of(self, spiffe_id: str) -> str:
        """The node that an ID names; raises `BadName`."""
        domain, path = split_id(spiffe_id)
        if domain != self.domain:
            raise BadName(f"its trust domain is {domain}, not {self.domain}")
        return self.path.node_of(path)


def is_spiffe(uri: str) -> bool:
    """True if a URI is meant to be a SPIFFE ID."""
    return uri.lower().startswith(f"{SCHEME}:")


def domain_id(domain: str) -> str:
    """The ID of a trust domain itself."""
    return f"{SCHEME}://{domain}"


def split_id(spiffe_id: str) -> tuple[str, str]:
    """The trust domain and the path; raises `BadName`."""
    scheme, separator, rest = spiffe_id[:_LARGEST].partition("://")
    domain, slash, path = rest.partition("/")
    if scheme != SCHEME or not separator or not _DOMAIN.fullmatch(domain):
        raise BadName("its SPIFFE ID can't be read")
    return domain, slash + path


def workload_address(text: str) -> str:
    """The gRPC target of a Workload API; raises `BadTemplate`.

    `unix:///run/spire/agent.sock`, a path alone, or `tcp://127.0.0.1:8000`. The API sends private
    keys in plain text, so another host is refused.
    """
    shown = repr(text[:120])
    url = urlsplit(text if ":" in text else f"unix:{text}")
    if url.query or url.fragment:
        raise BadTemplate(f"{shown} is no address of a Workload API")
    if url.scheme == "unix" and not url.netloc and url.path.startswith("/"):
        return f"unix:{url.path}"
    try:
        is_local = ipaddress.ip_address(url.hostname or "").is_loopback
        port = url.port
    except ValueError:
        raise BadTemplate(f"{shown} is neither unix:///PATH nor tcp://ADDRESS:PORT") from None
    if url.scheme != "tcp" or not port or url.path or url.username is not None:
        raise BadTemplate(f"{shown} is neither unix:///PATH nor tcp://ADDRESS:PORT")
    if not is_local:
        raise BadTemplate(f"{shown} is not loopback: keys would cross the network in plain text")
    return url.netloc
