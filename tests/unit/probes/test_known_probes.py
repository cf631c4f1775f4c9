"""A probe is one file: putting it into the folder is enough."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from lattice import probes
from lattice.domain.metric import CATALOGUE
from lattice.probes.helper_cache import HelperReadings
from lattice.probes.probe import NodeProbe, ProbeSite
from lattice.probes.registry import known_probes
from tests.fakes.manual_clock import ManualClock

NEW = """
class _Base:
    name, metrics, own_thread = "fans", frozenset(), False

    @classmethod
    def on(cls, site):
        return cls()


class FansProbe(_Base):
    pass
"""


def found(dcgm_url: str = "") -> tuple[NodeProbe, ...]:
    clock = ManualClock()
    helper = HelperReadings(None, clock)
    return known_probes(
        ProbeSite(clock=clock, helper=helper, uuids_of=lambda _: None, dcgm_url=dcgm_url)
    )


@pytest.mark.spec("TOP-1")
def test_every_probe_of_the_folder_is_made_once() -> None:
    names = [each.name for each in found()]
    assert sorted(names) == ["cgroup", "dcgm", "latency", "network", "processes"]


@pytest.mark.spec("TOP-1")
def test_every_metric_of_a_probe_is_in_the_catalogue() -> None:
    assert {metric for each in found() for metric in each.metrics} <= set(CATALOGUE)


@pytest.mark.spec("TOP-1")
@pytest.mark.parametrize(("url", "apart"), [("", []), ("http://127.0.0.1:9400/metrics", ["dcgm"])])
def test_only_a_probe_that_may_block_has_its_own_thread(url: str, apart: list[str]) -> None:
    assert [each.name for each in found(url) if each.own_thread] == apart


def test_a_new_file_is_a_new_probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fans.py").write_text(NEW)
    monkeypatch.setattr(probes, "__path__", [*probes.__path__, str(tmp_path)])
    try:
        names = [each.name for each in found()]
    finally:
        sys.modules.pop(f"{probes.__name__}.fans", None)
    assert "fans" in names
