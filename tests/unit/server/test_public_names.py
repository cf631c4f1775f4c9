"""At which hosts people reach a server."""

from __future__ import annotations

from pathlib import Path

import pytest
import trustme

from lattice.base.address import Address
from lattice.server.config.api_section import ApiSection
from lattice.server.public_names import PublicNames, certificate_names


def names(*, certificate: Path | None = None, public: tuple[str, ...] = ()) -> PublicNames:
    api = ApiSection(
        rest_listen=Address("0.0.0.0", 8080),
        agent_advertise=Address("own.example", 50052),
        tls_cert=certificate,
        public_names=public,
    )
    return PublicNames(api, lambda: ("other.example:50052",))


@pytest.mark.spec("TRY-4")
def test_names_of_the_certificate_with_a_star_for_one_label(tmp_path: Path) -> None:
    file = tmp_path / "server.crt"
    leaf = trustme.CA().issue_cert("lattice.example", "*.hpc.example", "10.0.0.7")
    leaf.cert_chain_pems[0].write_to_path(str(file))
    here = names(certificate=file)
    assert all(map(here.has, ("lattice.example", "LATTICE.example", "a.hpc.example", "10.0.0.7")))
    assert not any(
        map(here.has, ("example", "b.a.hpc.example", "hpc.example", "*", "", "10.0.0.8"))
    )


@pytest.mark.spec("TRY-4")
def test_names_of_the_configuration_and_of_the_other_replicas() -> None:
    here = names(public=("Proxy.example",))
    assert all(map(here.has, ("proxy.example", "own.example", "other.example")))
    assert not any(map(here.has, ("localhost", "127.0.0.1", "evil.example")))


@pytest.mark.spec("TRY-4")
def test_loopback_is_a_name_only_of_a_server_that_listens_there() -> None:
    here = PublicNames(ApiSection(), tuple)
    assert here.has("localhost")
    assert here.has("127.0.0.1")


@pytest.mark.parametrize("chain", [b"", b"no certificate"])
def test_a_file_without_a_certificate_names_nothing(chain: bytes) -> None:
    assert certificate_names(chain) == ()
