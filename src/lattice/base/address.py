"""The address of a listener, as the configuration writes it."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Address:
    """A host and a port. An IPv6 host is kept without its brackets."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Address:
        host, colon, port = text.rpartition(":")
        if not colon or not host or not port.isascii() or not port.isdigit() or len(port) > 5:
            raise ValueError(f"must be host:port, not {text[:60]!r}")
        if int(port) > 65535:
            raise ValueError(f"{port} is no port")
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
        elif ":" in host:
            raise ValueError(f"an IPv6 address stands in brackets: [{host}]:{port}")
        return cls(host, int(port))

    @property
    def is_wildcard(self) -> bool:
        """True if it means every address of the machine, so that no client can dial it."""
        try:
            return ipaddress.ip_address(self.host).is_unspecified
        except ValueError:
            return False

    @property
    def is_loopback(self) -> bool:
        """False for a name other than `localhost`: a resolver may answer differently tomorrow."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
