"""Which versions of server, agent and client may work together."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.domain.release import Fit, agent_fault, fit_of, releases_behind

_RELEASES = st.integers(0, 999)


@pytest.mark.spec("OPS-8")
@pytest.mark.parametrize(
    ("version", "fit"),
    [
        ("0.5.0", Fit.FITS),
        ("0.5.9", Fit.FITS),
        ("0.4.1", Fit.FITS),
        ("0.3.7", Fit.FITS),
        ("0.2.9", Fit.TOO_OLD),
        ("0.6.0rc1", Fit.FITS),
        ("0.7.0", Fit.TOO_NEW),
        ("1.0.0", Fit.TOO_NEW),
        ("0.5", Fit.FITS),
        ("0.5.1.dev3+g12", Fit.FITS),
        ("", Fit.UNKNOWN),
        ("five", Fit.UNKNOWN),
        ("0.5x", Fit.FITS),
        ("٠.٥", Fit.UNKNOWN),
    ],
)
def test_two_releases_behind_and_one_ahead_fit(version: str, fit: Fit) -> None:
    assert fit_of(version, "0.5.2") is fit


def test_a_change_of_the_first_number_is_too_far() -> None:
    assert fit_of("1.9.0", "2.0.0") is Fit.TOO_OLD
    assert fit_of("2.0.0", "1.9.0") is Fit.TOO_NEW
    assert fit_of("1.0.0", "unreleased") is Fit.UNKNOWN


@given(major=_RELEASES, one=_RELEASES, other=_RELEASES, fix=_RELEASES)
def test_releases_are_counted_without_their_fixes(
    major: int, one: int, other: int, fix: int
) -> None:
    behind = releases_behind(f"{major}.{one}.{fix}", f"{major}.{other}.0")
    assert behind == other - one
    assert releases_behind(f"{major}.{other}.0", f"{major}.{one}.{fix}") == -behind


@given(st.text(max_size=70))
def test_any_text_has_an_answer(version: str) -> None:
    assert fit_of(version, "0.1.0") in Fit
    assert isinstance(agent_fault(version, "0.1.0"), str)


def test_a_fault_names_both_versions_and_what_to_do() -> None:
    old, new = agent_fault("0.1.0", "0.4.0"), agent_fault("0.9.0", "0.4.0")
    assert all(word in old for word in ("0.1.0", "0.4.0", "on the node"))
    assert "Upgrade the servers first" in new
    assert agent_fault("0.2.0", "0.4.0") == agent_fault("", "0.4.0") == ""
