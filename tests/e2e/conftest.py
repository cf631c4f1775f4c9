"""Whole stories: a lab with Slurm, an identity provider and a server, and people in it."""

from __future__ import annotations

import pytest

from lab.laboratory import Lab
from tests.e2e.people import Person


@pytest.fixture
def alice(lab: Lab) -> Person:
    return Person(lab, "alice").logged_in()


@pytest.fixture
def bob(lab: Lab) -> Person:
    return Person(lab, "bob").logged_in()


@pytest.fixture
def carol(lab: Lab) -> Person:
    return Person(lab, "carol").logged_in("tenant:admin")
