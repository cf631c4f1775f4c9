"""The releases before this one, as the lab knows them."""

from __future__ import annotations

import re

import pytest

import lattice
from lab.command import LabError
from lab.earlier import EARLIER, earlier
from lattice.domain.release import Fit, fit_of


def test_two_releases_stand_before_this_one_each_older_than_the_last() -> None:
    assert [each.name for each in EARLIER] == ["n-1", "n-2"]
    versions = [[int(part) for part in each.version.split(".")] for each in EARLIER]
    now = [int(part) for part in lattice.__version__.split(".")[:3]]
    assert now > versions[0] > versions[1]
    assert all(re.fullmatch("[0-9a-f]{40}", each.commit) for each in EARLIER)
    assert len({each.python for each in EARLIER}) == len(EARLIER)


def test_agents_of_both_fit_a_server_of_today() -> None:
    assert {fit_of(each.version, lattice.__version__) for each in EARLIER} == {Fit.FITS}


def test_another_name_is_refused() -> None:
    with pytest.raises(LabError, match="there are n-1, n-2"):
        earlier("n-3")
