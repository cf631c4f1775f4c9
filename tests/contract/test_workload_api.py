"""The SPIFFE Workload API: what its client and the API of the tests agree on.

The names and numbers are those that SPIFFE publishes. The suite runs on any API that has one
identity for this process: `LATTICE_TEST_WORKLOAD_API=unix:/run/spire/agent.sock` names a real one.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from grpc import aio

from lattice.adapters.spiffe.wire import workload_pb2 as pb
from lattice.adapters.spiffe.workload import WorkloadApi
from lattice.base.errors import ConfigurationError, Unavailable
from lattice.domain.spiffe import split_id
from lattice.wire.peerguard import is_signed_by
from tests.fakes.spire import DOMAIN, FakeSpire, SpiffeAuthority

REAL = os.environ.get("LATTICE_TEST_WORKLOAD_API", "")


@pytest.fixture
async def spire() -> FakeSpire:
    fake = FakeSpire(SpiffeAuthority())
    fake.give(fake.authority.node("n1"))
    return fake


@pytest.fixture(params=["fake", *(["real"] if REAL else [])])
async def address(
    request: pytest.FixtureRequest, spire: FakeSpire, tmp_path: Path
) -> AsyncIterator[str]:
    if request.param == "real":
        yield REAL
        return
    async with spire.serving(tmp_path / "api.sock") as served:
        yield served


def test_the_names_and_numbers_are_those_that_spiffe_publishes() -> None:
    service = pb.DESCRIPTOR.services_by_name["SpiffeWorkloadAPI"]
    assert service.full_name == "SpiffeWorkloadAPI", "the service has no package"
    assert {each.name for each in service.methods} == {"FetchX509SVID", "FetchX509Bundles"}
    assert all(each.server_streaming for each in service.methods)
    numbers = {
        name: {each.name: each.number for each in message.fields}
        for name, message in pb.DESCRIPTOR.message_types_by_name.items()
        if message.fields
    }
    assert numbers == {
        "X509SVIDResponse": {"svids": 1},
        "X509SVID": {"spiffe_id": 1, "x509_svid": 2, "x509_svid_key": 3, "bundle": 4},
        "X509BundlesResponse": {"bundles": 2},
    }


@pytest.mark.spec("AUTH-9")
async def test_the_first_message_has_a_certificate_with_its_key(address: str) -> None:
    async with aclosing(WorkloadApi(address).svids()) as updates:
        first = (await anext(updates))[0]
    chain = x509.load_pem_x509_certificates(first.certificate.encode())
    key = serialization.load_pem_private_key(first.key.encode(), None)
    assert chain[0].public_key() == key.public_key()
    names = chain[0].extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.UniformResourceIdentifier) == [first.spiffe_id]
    assert "PRIVATE" not in repr(first)


@pytest.mark.spec("AUTH-9")
async def test_the_bundle_of_the_domain_signed_the_certificate(address: str) -> None:
    api = WorkloadApi(address)
    async with aclosing(api.svids()) as updates:
        first = (await anext(updates))[0]
    domain, _ = split_id(first.spiffe_id)
    async with aclosing(api.bundles(domain)) as bundles:
        bundle = await anext(bundles)
    last = x509.load_pem_x509_certificates(first.certificate.encode())[-1]
    assert is_signed_by(last, bundle.encode())


async def test_a_call_without_the_header_is_refused(address: str) -> None:
    async with aio.insecure_channel(address) as channel:
        call = channel.unary_stream("/SpiffeWorkloadAPI/FetchX509SVID")(b"")
        with pytest.raises(aio.AioRpcError) as refusal:
            await call.read()
    assert refusal.value.code() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.spec("AUTH-9")
async def test_a_rotation_arrives_on_the_open_stream(spire: FakeSpire, tmp_path: Path) -> None:
    async with (
        spire.serving(tmp_path / "own.sock") as address,
        aclosing(WorkloadApi(address).svids()) as updates,
    ):
        first = await anext(updates)
        spire.give(spire.authority.node("n1"))
        second = await asyncio.wait_for(anext(updates), 20)
    assert first[0].spiffe_id == second[0].spiffe_id == f"spiffe://{DOMAIN}/lattice/node/n1"
    assert first[0].certificate != second[0].certificate
    assert spire.calls == 1


@pytest.mark.spec("AUTH-9")
async def test_a_socket_that_is_away_or_has_nothing_gives_a_plain_reason(
    spire: FakeSpire, tmp_path: Path
) -> None:
    missing = WorkloadApi(f"unix:{tmp_path}/none.sock")
    with pytest.raises(Unavailable) as away:
        await anext(missing.svids())
    assert away.value.message == f"unix:{tmp_path}/none.sock: there is no such socket."
    spire.give()
    async with spire.serving(tmp_path / "api.sock") as address:
        with pytest.raises(Unavailable, match="no identity for this process") as denied:
            await anext(WorkloadApi(address).svids())
        assert "spire-server entry create" in str(denied.value.hint)
        with pytest.raises(Unavailable, match=r"has no authorities of other\.org"):
            await anext(WorkloadApi(address).bundles("other.org"))
    with pytest.raises(Unavailable, match="connection refused"):
        await anext(WorkloadApi("127.0.0.1:1").svids())


async def test_another_service_on_the_socket_is_named(tmp_path: Path) -> None:
    server = aio.server()
    server.add_insecure_port(f"unix:{tmp_path}/other.sock")
    await server.start()
    with pytest.raises(ConfigurationError, match="does not serve the SPIFFE Workload API"):
        await anext(WorkloadApi(f"unix:{tmp_path}/other.sock").svids())
    await server.stop(None)


async def test_a_socket_that_never_answers_is_given_up(tmp_path: Path) -> None:
    over = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()
        await writer.wait_closed()
        over.set()

    async with await asyncio.start_unix_server(silent, tmp_path / "silent.sock"):
        api = WorkloadApi(f"unix:{tmp_path}/silent.sock", first_s=0.2)
        with pytest.raises(Unavailable, match="no answer in time"):
            await anext(api.svids())
        await asyncio.wait_for(over.wait(), 60)


@pytest.mark.parametrize(
    "broken",
    [
        {"x509_svid": b""},
        {"x509_svid": b"0\x82\xff\xffcut off"},
        {"x509_svid_key": b""},
        {"x509_svid_key": b"not DER"},
    ],
)
async def test_a_message_that_is_not_whole_is_refused(
    spire: FakeSpire, tmp_path: Path, broken: dict[str, bytes]
) -> None:
    message = spire.authority.node("n1").message(spire.authority.bundle)
    for name, value in broken.items():
        setattr(message, name, value)
    spire.give_raw(pb.X509SVIDResponse(svids=[message]))
    async with spire.serving(tmp_path / "api.sock") as address:
        with pytest.raises(Unavailable, match="sent an unusable SVID"):
            await anext(WorkloadApi(address).svids())
