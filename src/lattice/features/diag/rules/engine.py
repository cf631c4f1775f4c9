"""Finds the built-in rules, runs rules over a case, and folds consequences into their cause. Pure.

A rule that fails becomes an unknown line: a site's own rule must not break the page.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from operator import attrgetter

from lattice.base.discovery import classes_in
from lattice.features.diag import rules as folder
from lattice.features.diag.model import Area, Case, DiagRule, Finding, Lack, Verdict, worst
from lattice.features.diag.rules.findings import unknown

_ORDER = {Verdict.BAD: 0, Verdict.ATTENTION: 1, Verdict.UNKNOWN: 2, Verdict.OK: 3}
ALWAYS = "node_silent"
"""Judged for every area: a node that does not answer is missing from every line."""


def known_rules() -> tuple[DiagRule, ...]:
    """Return the rules of this folder, each public class with `judge`, in the order of the page."""
    found = (each() for each in classes_in(folder, "judge"))
    return tuple(sorted(found, key=attrgetter("order")))


def run_rules(
    rules: Sequence[DiagRule], case: Case, areas: Iterable[Area] = ()
) -> tuple[Finding, ...]:
    """Return faults first, then unknown lines, then good ones."""
    wanted = frozenset(areas)
    found = [each for rule in rules for each in _of(rule, case)]
    found = _folded(rules, found)
    if wanted:
        found = [each for each in found if each.area in wanted or each.rule == ALWAYS]
    return tuple(sorted(found, key=lambda each: _ORDER[each.verdict]))


def _of(rule: DiagRule, case: Case) -> list[Finding]:
    try:
        return list(rule.judge(case))
    except Exception as error:  # noqa: BLE001 - whatever a rule of a site does
        return [unknown(rule, case, f"the rule failed ({type(error).__name__})", Lack.FAILED, ())]


def _folded(rules: Sequence[DiagRule], found: Sequence[Finding]) -> list[Finding]:
    """Remove faults that are consequences of another; that one names them."""
    explains = {rule.name: rule.explains for rule in rules}
    sick = {each.rule for each in found if each.verdict.is_sick}
    by: dict[str, str] = {}
    for rule in rules:
        for name in explains[rule.name] if rule.name in sick else ():
            if name in sick and rule.name not in explains.get(name, frozenset()):
                by.setdefault(name, rule.name)
    remaining = []
    for each in found:
        if each.verdict.is_sick and each.rule in by:
            continue
        follows = [
            other.title
            for other in found
            if other.verdict.is_sick and _root(by, other.rule) == each.rule != other.rule
        ]
        if each.verdict.is_sick and follows:
            titles = ", ".join(dict.fromkeys(follows))
            each = replace(each, evidence=f"{each.evidence} (from this follows: {titles})")  # noqa: PLW2901
        remaining.append(each)
    return remaining


def _root(by: dict[str, str], name: str) -> str:
    seen = {name}
    while name in by and by[name] not in seen:
        name = by[name]
        seen.add(name)
    return name


def verdict_of(findings: Sequence[Finding]) -> Verdict:
    """Return the worst verdict. What this system never measures does not count."""
    return worst([each.verdict for each in findings if _counts(each)])


def _counts(finding: Finding) -> bool:
    known = finding.verdict is not Verdict.UNKNOWN
    return known or finding.lack is None or finding.lack.counts


def summary_of(verdict: Verdict, findings: Sequence[Finding]) -> str:
    """Return the verdict in one sentence."""
    sick = [each for each in findings if each.verdict.is_sick]
    unknowns = sum(each.verdict is Verdict.UNKNOWN and _counts(each) for each in findings)
    rest = f"; {_several(unknowns, 'check')} could not be made" if unknowns else ""
    if sick:
        titles = ", ".join(dict.fromkeys(each.title for each in sick))
        return f"{_several(len(sick), 'finding')}: {titles}{rest}"
    fine = sum(each.verdict is Verdict.OK for each in findings)
    if verdict is Verdict.UNKNOWN:
        return f"nothing sick was found, but not everything could be looked at{rest}"
    return f"{_several(fine, 'check')} and nothing sick{rest}"


def _several(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
