"""The authorities of a trust domain: read again, refused, and received from a Workload API."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from lattice.adapters.spiffe.bundle import BundleFile, BundleRefused, BundleStream
from lattice.adapters.spiffe.workload import WorkloadApi
from tests.eventually import eventually_async
from tests.fakes.manual_clock import ManualClock
from tests.fakes.spire import DOMAIN, FakeSpire, SpiffeAuthority


@pytest.mark.spec("AUTH-9")
def test_a_changed_file_is_taken_up_and_a_bad_one_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock, file = ManualClock(), tmp_path / "bundle.pem"
    with pytest.raises(BundleRefused, match="No such file"):
        BundleFile(file, clock)
    old, new = SpiffeAuthority(), SpiffeAuthority()
    file.write_bytes(old.bundle_pem)
    bundle = BundleFile(file, clock)
    assert bundle.authorities() == old.bundle_pem
    file.write_bytes(old.bundle_pem + new.bundle_pem)
    clock.advance(6)
    assert bundle.authorities() == old.bundle_pem + new.bundle_pem
    file.write_text("nothing")
    clock.advance(6)
    assert bundle.authorities() == old.bundle_pem + new.bundle_pem
    file.unlink()
    clock.advance(6)
    assert bundle.authorities() == old.bundle_pem + new.bundle_pem
    assert [each.message for each in caplog.records] == ["bundle refused, the old one stays"]


@pytest.mark.spec("AUTH-9")
async def test_a_workload_api_gives_those_of_this_domain_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    own, foreign = SpiffeAuthority(), SpiffeAuthority("other.org")
    spire = FakeSpire(own)
    spire.give_bundles({"spiffe://other.org": foreign.bundle})
    tried: list[float] = []

    async def sleep(seconds: float) -> None:
        tried.append(seconds)
        await asyncio.sleep(0.01)

    async def now() -> bytes:
        return bundle.authorities()

    async with spire.serving(tmp_path / "api.sock") as address:
        bundle = BundleStream(WorkloadApi(address), DOMAIN, sleep)
        running = asyncio.create_task(bundle.run())
        await eventually_async(_count(tried), lambda count: count > 2)
        assert bundle.authorities() == b""
        assert len([r for r in caplog.records if r.message == "no authorities from SPIRE"]) == 1
        both = {f"spiffe://{DOMAIN}": own.bundle, "spiffe://other.org": foreign.bundle}
        spire.give_bundles(both)
        await eventually_async(now, lambda found: found == own.bundle_pem)
        newer = SpiffeAuthority()
        spire.give_bundles({f"spiffe://{DOMAIN}": own.bundle + newer.bundle})
        await eventually_async(now, lambda found: found == own.bundle_pem + newer.bundle_pem)
        running.cancel()


def _count(tried: list[float]):  # type: ignore[no-untyped-def]
    async def count() -> int:
        return len(tried)

    return count
