"""One server process for all attacks that leave it as it was."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fakes.identity_provider import IdentityProvider, running_provider
from tests.integration.attacks.attacked_server import AttackedServer


@pytest.fixture
def idp() -> Iterator[IdentityProvider]:
    with running_provider() as provider:
        yield provider


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AttackedServer]:
    """Small limits: one request reaches them."""
    with running_provider() as provider:
        made = AttackedServer(tmp_path_factory.mktemp("attacked"), provider)
        made.config["rate_limits"] = {
            "diagnostics_per_minute": 1,
            "public_per_minute": 1_000_000,
        }
        with made.serving():
            yield made
