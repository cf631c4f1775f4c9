"""What a site can say of diagnoses: targets, rules of its own, rules it does not want."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from lattice.features.diag.model import Area, Case, Finding, Lack, Subject, Verdict
from lattice.features.diag.rules.engine import known_rules, run_rules, verdict_of
from lattice.features.diag.rules.findings import FindingTemplate, Observation, findings
from lattice.features.diag.section import DiagSection, LinkFloor, MountFloor
from lattice.features.diag.wiring import RULES, rules_of, targets_of
from lattice.server.config.load import check_server_config
from tests.unit.features.diag.wards import healthy


class Quota:
    """A rule of a site's own."""

    name, title, area = "quota", "Quota", Area.STORAGE
    explains = frozenset({"slow_mount"})

    def judge(self, case: Case) -> Iterator[Finding]:
        seen = [
            Observation(subject=Subject(node=each), verdict=Verdict.BAD, evidence=f"{each} is full")
            for each in case.nodes
        ]
        yield from findings(self, case, seen, FindingTemplate(remedy="Delete something."))


class Failing(Quota):
    name = "failing"

    def judge(self, case: Case) -> Iterator[Finding]:
        raise KeyError(case.now)


class NoRule:
    name = "nothing"


def entry(kind: str) -> EntryPoint:
    return EntryPoint(kind, f"{__name__}:{kind}", RULES)


@pytest.mark.spec("DIAG-5")
def test_a_site_adds_rules_and_leaves_some_out() -> None:
    rules = rules_of(DiagSection(without=("clock",)), [entry("Quota")])
    names = {each.name for each in rules}
    assert names == ({each.name for each in known_rules()} | {"quota"}) - {"clock"}
    found = run_rules(rules, healthy().case)
    assert [each.rule for each in found if each.verdict.is_sick] == ["quota"]


@pytest.mark.spec("DIAG-5")
def test_a_rule_that_can_not_be_loaded_is_left_out_and_the_others_stand() -> None:
    rules = rules_of(DiagSection(), [entry("NoRule"), entry("Missing"), entry("Quota")])
    assert {each.name for each in rules} == {each.name for each in known_rules()} | {"quota"}


@pytest.mark.spec("DIAG-5")
def test_a_rule_that_fails_is_unknown_and_the_rest_of_the_page_stands() -> None:
    found = run_rules(rules_of(DiagSection(), [entry("Failing")]), healthy().case)
    (failed,) = [each for each in found if each.rule == "failing"]
    assert (failed.verdict, failed.lack) == (Verdict.UNKNOWN, Lack.FAILED)
    assert failed.reason == "the rule failed (KeyError)"
    assert verdict_of(found) is Verdict.UNKNOWN
    assert len(found) > 20


def test_targets_are_in_the_units_of_what_is_measured() -> None:
    section = DiagSection(
        mounts=(MountFloor(path="/scratch", read_mb_s=2000, answers_ms=500),),
        links=(LinkFloor(name="hsn*", gbit_s=200),),
        clock_s=0.5,
    )
    targets = targets_of(section)
    assert (targets.mounts[0].read_bytes_s, targets.mounts[0].write_bytes_s) == (2e9, None)
    assert targets.mounts[0].answers_s == 0.5
    assert targets.links[0].speed_bits == 2e11
    assert targets.clock_s == 0.5
    assert targets_of(DiagSection()).hang_s == 120.0


@pytest.mark.spec("OPS-7")
def test_wrong_targets_are_named_with_their_place(tmp_path: Path) -> None:
    file = tmp_path / "server.yaml"
    file.write_text(
        """
slurm: {rest_url: "unix:/run/slurmrestd.sock"}
diag:
  mounts: [{path: scratch}, {path: /a}, {path: /a}]
  links: [{name: hsn0, gbit_s: 0}]
  memory_percent: 900
  quite_s: 3
"""
    )
    told = "\n".join(check_server_config(file, {}).problems)
    assert "quite_s" in told
    assert "memory_percent" in told
    file.write_text(file.read_text().replace("  memory_percent: 900\n  quite_s: 3\n", ""))
    told = "\n".join(check_server_config(file, {}).problems)
    for words in ("diag.mounts[0].path", "stands more than once", "diag.links[0].gbit_s"):
        assert words in told, told
