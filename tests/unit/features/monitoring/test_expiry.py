"""Expiries are shown while they can be read."""

from __future__ import annotations

import pytest

from lattice.base.errors import ConfigurationError
from lattice.features.monitoring.model import RefusedNodes
from lattice.features.monitoring.service.expiry import ExpiryWatch
from tests.fakes.expiries import FixedExpiries


@pytest.mark.spec("OPS-8")
async def test_a_certificate_that_cannot_be_read_has_no_expiry() -> None:
    expiries = FixedExpiries()
    watch = ExpiryWatch(expiries)
    expiries.of = {"people": 5.0, "agents": 3.0, "authority": OSError("gone")}
    await watch.read()
    assert {each.labels: each.value for each in watch.values()} == {
        ("people",): 5.0,
        ("agents",): 3.0,
    }
    expiries.of["people"] = ConfigurationError("no certificate")
    await watch.read()
    assert [each.labels for each in watch.values()] == [("agents",)]


@pytest.mark.spec("OPS-8")
async def test_refused_nodes_are_shown_once_somebody_knows() -> None:
    expiries = FixedExpiries()
    watch = ExpiryWatch(expiries)
    assert list(watch.values()) == []
    expiries.nodes = RefusedNodes(revoked=0, quarantine=2)
    assert {each.labels: each.value for each in watch.values()} == {
        ("revoked",): 0,
        ("quarantine",): 2,
    }
