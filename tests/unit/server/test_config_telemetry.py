"""The section `telemetry` of the server's configuration, and the store that is opened from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from lattice.adapters.metricstore.store import HttpMetricStore
from lattice.base.clock import SystemClock
from lattice.domain.telemetry import Mode
from lattice.server.config.engine_sections import TelemetrySection
from lattice.server.config.load import Checked, check_server_config
from lattice.server.engines import open_metric_store

SLURM = "slurm: {rest_url: 'unix:/run/slurmrestd.socket'}\n"
URL = "tsdb_endpoint: 'http://127.0.0.1:8428'"


def checked(folder: Path, text: str) -> Checked:
    file = folder / "server.yaml"
    file.write_text(f"{SLURM}telemetry: {{{text}}}\n")
    for name in ("password", "bearer"):
        (folder / name).write_text("secret")
        (folder / name).chmod(0o600)
    (folder / "nothing").write_text("no certificate")
    return check_server_config(file, {})


@pytest.mark.spec("OPS-7")
def test_what_a_site_usually_says(tmp_path: Path) -> None:
    found = checked(tmp_path, f"{URL}, mode: audit, debug_most: 3").config
    assert found is not None
    assert found.telemetry.mode is Mode.AUDIT
    assert found.telemetry.debug_most == 3
    assert TelemetrySection().mode is Mode.PROD
    assert not found.telemetry.nodes_write, "no node is trusted with names unless the site says so"
    trusting = checked(tmp_path, f"{URL}, nodes_write: true").config
    assert trusting is not None
    assert trusting.telemetry.nodes_write


@pytest.mark.spec("OPS-7")
@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("tsdb_endpoint: 'ftp://store'", "must be a URL"),
        ("tsdb_endpoint: 'http://u:p@store'", "password"),
        ("tsdb_bearer_file: bearer", "needs telemetry.tsdb_endpoint too"),
        (f"{URL}, tsdb_username: x", "needs telemetry.tsdb_password_file too"),
        (f"{URL}, tsdb_password_file: password", "needs telemetry.tsdb_username too"),
        (
            f"{URL}, tsdb_username: x, tsdb_password_file: password, tsdb_bearer_file: bearer",
            "name one of the two",
        ),
        (f"{URL}, tsdb_bearer_file: absent", "No such file"),
        (f"{URL}, tsdb_ca: nothing", "holds no certificates"),
        (f"{URL}, mode: loud", "mode"),
        (f"{URL}, debug_most: -1", "debug_most"),
    ],
)
def test_what_can_not_be_is_told(tmp_path: Path, text: str, told: str) -> None:
    (problem,) = checked(tmp_path, text).problems
    assert told in problem


def test_a_secret_in_plain_text_is_warned_of(tmp_path: Path) -> None:
    for url, warned in (("http://store:8428", True), ("http://127.0.0.1:8428", False)):
        found = checked(tmp_path, f"tsdb_endpoint: '{url}', tsdb_bearer_file: bearer")
        assert found.problems == ()
        assert any("can be read on its way" in each for each in found.warnings) is warned


async def test_a_server_starts_while_its_store_is_away() -> None:
    async with open_metric_store(TelemetrySection(), SystemClock()) as none:
        assert none is None
    section = TelemetrySection(tsdb_endpoint="http://127.0.0.1:1")
    async with open_metric_store(section, SystemClock()) as store:
        assert isinstance(store, HttpMetricStore)
