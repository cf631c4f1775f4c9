"""The section `telemetry` of the server: the metric store, and how often jobs are sampled.

`lattice.server.engines` opens the store.
"""
# ruff: noqa: RUF009 - `setting` declares a field, as `dataclasses.field` does.

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lattice.base.config import ConfigReport
from lattice.base.config_checks import check_authority, check_file, check_url, is_plain_outside
from lattice.base.setting import setting
from lattice.domain.telemetry import Mode
from lattice.features.telemetry.service.modes import MOST_DEBUGGING


@dataclass(frozen=True, slots=True, kw_only=True)
class TelemetrySection:
    tsdb_endpoint: str | None = setting(
        None,
        "The metric store, as a URL: VictoriaMetrics, or a Prometheus that takes remote write. "
        "Not set: nothing measured is kept, and only what runs now can be shown.",
    )
    tsdb_username: str | None = setting(None, "As whom the store is asked, with a password.")
    tsdb_password_file: Path | None = setting(
        None, "File with that password. Read again each time."
    )
    tsdb_bearer_file: Path | None = setting(
        None, "File with a bearer token for the store instead. Read again each time."
    )
    tsdb_ca: Path | None = setting(
        None, "Authorities to trust for the store, PEM, beside the system's."
    )
    mode: Mode = setting(
        Mode.PROD,
        "The mode of an allocation nobody switched: `prod` and `audit` measure every 30 s, "
        "`debug` every second.",
    )
    debug_most: int = setting(
        10,
        "How many allocations may be switched to debug at once, over the whole cluster; 0: none.",
        least=0,
        most=MOST_DEBUGGING,
    )
    nodes_write: bool = setting(
        False,
        "Whether nodes are told whose their jobs are, so that those with `telemetry.remote_write` "
        "write to the metric store themselves. Such a node can put any name on a series: only "
        "where the site trusts its nodes. Sensitive jobs never go that way.",
    )


def judge_telemetry(telemetry: TelemetrySection, report: ConfigReport) -> None:
    """Check the rules between its keys."""
    endpoint = "telemetry.tsdb_endpoint"
    check_url(endpoint, telemetry.tsdb_endpoint, report, outside=("http", "https"))
    others = ("tsdb_username", "tsdb_password_file", "tsdb_bearer_file", "tsdb_ca")
    if telemetry.tsdb_endpoint is None:
        for name in (each for each in others if getattr(telemetry, each) is not None):
            report.problem(f"telemetry.{name}", f"needs {endpoint} too", endpoint)
    for have, lack in (others[:2], others[1::-1]):
        if getattr(telemetry, have) is not None and getattr(telemetry, lack) is None:
            text = f"needs telemetry.{lack} too"
            report.problem(f"telemetry.{have}", text, f"telemetry.{lack}")
    if telemetry.tsdb_password_file and telemetry.tsdb_bearer_file:
        text = "goes with no password: name one of the two"
        report.problem("telemetry.tsdb_bearer_file", text, "telemetry.tsdb_password_file")
    for name in ("tsdb_password_file", "tsdb_bearer_file"):
        check_file(f"telemetry.{name}", getattr(telemetry, name), report, secret=True)
    secret = telemetry.tsdb_password_file or telemetry.tsdb_bearer_file
    if secret and is_plain_outside(telemetry.tsdb_endpoint):
        report.warning(endpoint, "the store's secret can be read on its way: use https://")
    check_authority("telemetry.tsdb_ca", telemetry.tsdb_ca, report)
