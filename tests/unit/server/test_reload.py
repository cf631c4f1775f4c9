"""The server's configuration read again: what is reloaded, and that each part follows."""

from __future__ import annotations

import logging
from contextlib import AsyncExitStack
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from lattice.access.limits import Questions, Sessions
from lattice.agent.run import RELOADED as OF_THE_AGENT
from lattice.agent.sections import AgentConfig
from lattice.base.clock import SystemClock
from lattice.base.logsection import LogLevel, LogSection
from lattice.base.reload import ReloadTable
from lattice.base.setting import setting_of
from lattice.domain.presence import Times
from lattice.domain.telemetry import Mode
from lattice.domain.vcluster import VclusterKind
from lattice.features.diag.section import DiagSection
from lattice.features.logs.section import LogsSection
from lattice.features.sharing.section import SharingSection
from lattice.server.config.reload_table import RELOADED, problems_of
from lattice.server.config.sections import (
    RateLimitsSection,
    ServerConfig,
    UserLimits,
    VclusterEntry,
)
from lattice.server.foundation import Ground, open_ground
from lattice.server.serve import open_features
from tests.fakes.foundation import SILENT_LOG
from tests.fakes.supervised import SupervisedLoops
from tests.unit.server.test_loops import config

PAGE = Path(__file__).parents[3] / "docs/operate/configuration.md"


@pytest.mark.parametrize(("kind", "table"), [(ServerConfig, RELOADED), (AgentConfig, OF_THE_AGENT)])
def test_every_key_of_the_table_exists(kind: Any, table: ReloadTable) -> None:
    whole = kind()
    for section, keys in table.items():
        known = getattr(whole, section)
        assert set(keys) <= {each.name for each in fields(known)} if keys else known is not None


@pytest.mark.parametrize("table", [RELOADED, OF_THE_AGENT])
def test_the_page_has_the_same_table(table: ReloadTable) -> None:
    rows = PAGE.read_text().splitlines()
    for section, keys in table.items():
        assert f"| `{section}` | {', '.join(f'`{key}`' for key in keys) or 'all'} |" in rows
    listed = sum(line.startswith("| `") for line in _tables(rows))
    assert listed == len(RELOADED) + len(OF_THE_AGENT), "no more and no less"


def _tables(rows: list[str]) -> list[str]:
    first = rows.index("## Reload")
    last = rows.index("## Where values come from")
    return rows[first:last]


def test_sections_that_are_no_settings_are_not_in_the_table() -> None:
    known = {each.name for each in fields(ServerConfig) if setting_of(each) is not None}
    assert set(RELOADED) <= known


async def test_every_part_of_a_server_follows(tmp_path: Path) -> None:
    made = config(tmp_path)
    api = replace(made.api, oidc_client_id="cli", oidc_audience="lattice")
    before = replace(made, api=api, log=LogSection(level=LogLevel.INFO))
    assert problems_of(before, before) == ()
    file = [before]
    root = logging.getLogger().level
    try:
        async with (
            open_ground(
                before, SystemClock(), SILENT_LOG, SupervisedLoops(), lambda: file[-1]
            ) as ground,
            AsyncExitStack() as stack,
        ):
            faces = await open_features(ground, stack)
            file.append(wanted(before))
            outcome = await ground.reloader.reload()
            assert outcome.problems == ()
            assert outcome.waiting == ("quorum.endpoints",)
            assert {each.partition(".")[0] for each in outcome.applied} == set(RELOADED)
            check(ground)
            assert faces.gatekeeper is not None
            assert faces.gatekeeper.names.service_accounts == {"robot": "alice"}
    finally:
        logging.getLogger().setLevel(root)


def wanted(before: ServerConfig) -> ServerConfig:
    return replace(
        before,
        api=replace(before.api, service_accounts={"robot": "alice"}),
        slurm=replace(before.slurm, poll_interval_s=9.0),
        vclusters=(VclusterEntry(name="train", kind=VclusterKind.HPC, partition="gpu"),),
        logs=LogsSection(retention_days=7, job_quota_mb=1),
        sharing=SharingSection(usual_days=1.0, longest_days=2.0),
        telemetry=replace(before.telemetry, mode=Mode.AUDIT, debug_most=3),
        node_agent=replace(
            before.node_agent,
            degraded_after_s=11.0,
            grace_period_s=22.0,
            sensitive_grace_period_s=44.0,
        ),
        rate_limits=RateLimitsSection(
            stream_logs_max_concurrent=1, users={"robot": UserLimits(compare_per_minute=2)}
        ),
        diag=DiagSection(hang_s=60.0),
        log=LogSection(level=LogLevel.WARNING),
        quorum=replace(before.quorum, endpoints=("https://etcd:2379",)),
    )


def check(ground: Ground) -> None:
    """Each part has the new values."""
    assert [each.name for each in ground.foundation.views.views] == ["train"]
    table = ground.cluster.limits.rates.table
    assert table is ground.cluster.limits.slots.table
    assert table.of("alice", Sessions.STREAM_LOGS) == 1
    assert table.of("robot", Questions.COMPARE) == 2
    assert ground.cluster.view.presences.times == Times(11.0, 22.0, 44.0)
    assert ground.agents is not None
    modes = ground.agents.measurement.modes
    assert (modes.usual, modes.debug_most) == (Mode.AUDIT, 3)
    assert logging.getLogger().level == logging.WARNING


@pytest.mark.threat("sensitive")
def test_the_first_vcluster_for_sensitive_work_takes_a_restart(tmp_path: Path) -> None:
    before = config(tmp_path)
    entry = VclusterEntry(name="vault", kind=VclusterKind.SENSITIVE, partition="vault")
    (problem,) = problems_of(replace(before, vclusters=(entry,)), before)
    assert problem.endswith("vclusters: the first one for sensitive work takes a restart")
