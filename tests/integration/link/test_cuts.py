"""The law of resumed streams on the real wire; `just soak cuts` runs ten thousand."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.link.cuts import run_cuts
from tests.integration.link.site import Site


@pytest.mark.spec("AUTH-8")
@pytest.mark.timeout(120)
@pytest.mark.parametrize(("lanes", "seed"), [(True, 1), (True, 2), (False, 3)])
async def test_cut_at_any_byte_a_stream_loses_and_repeats_nothing(
    tmp_path: Path, lanes: bool, seed: int
) -> None:
    async with Site(tmp_path) as site:
        site.lanes = lanes
        run = await run_cuts(site, 150, seed)
    assert run.cuts >= 150
    assert not lanes or run.lane_cuts > 30
    assert run.messages > 100
