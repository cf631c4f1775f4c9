"""The hosts at which people reach this server, by its certificate and its configuration."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from cryptography import x509

from lattice.base.address import Address
from lattice.server.config.api_section import ApiSection

_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


class PublicNames:
    """Knows them, and the hosts of the other replicas, which a client may have tried first."""

    def __init__(self, api: ApiSection, replicas: Callable[[], tuple[str, ...]]) -> None:
        """`replicas` returns the addresses of the agents' listeners."""
        self.reload(api)
        self._certificate = api.tls_cert
        self._replicas = replicas

    def reload(self, api: ApiSection) -> None:
        """From now on the names of this section."""
        self._fixed = {each.lower() for each in api.public_names} | {api.rest_listen.host.lower()}
        if api.rest_listen.is_loopback:
            self._fixed |= _LOOPBACK
        if api.agent_advertise is not None:
            self._fixed.add(api.agent_advertise.host.lower())

    def has(self, host: str) -> bool:
        """True for such a host; a name with a star stands for one label."""
        host = host.lower()
        return any(each in (host, _starred(host)) for each in self._hosts())

    def _hosts(self) -> Iterable[str]:
        yield from self._fixed
        yield from (Address.parse(each).host.lower() for each in self._replicas())
        try:
            chain = self._certificate.read_bytes() if self._certificate else b""
        except OSError:
            return
        yield from certificate_names(chain)


def certificate_names(chain: bytes) -> tuple[str, ...]:
    """The hosts that the first certificate of a PEM chain is for, in small letters."""
    try:
        first = x509.load_pem_x509_certificates(chain)[0]
        names = first.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, IndexError, x509.ExtensionNotFound):
        return ()
    hosts = names.get_values_for_type(x509.DNSName)
    addresses = names.get_values_for_type(x509.IPAddress)
    return (*(each.lower() for each in hosts), *map(str, addresses))


def _starred(host: str) -> str:
    return f"*.{host.partition('.')[2]}"
