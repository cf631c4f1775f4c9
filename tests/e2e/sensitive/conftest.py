"""The lab of all stories in this folder: its servers have a vCluster for sensitive work.

They are started again once for the folder, so one worker runs all of it (`tests/gate_scopes.py`).
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lab.laboratory import Lab
from lab.sensitive import serve_as_before, serve_sensitive_work


@pytest.fixture(scope="package")
def sensitive_lab(lab: Lab) -> Iterator[Lab]:
    """The session's lab while its servers have a vCluster for sensitive work."""
    before = serve_sensitive_work(lab)
    yield lab
    serve_as_before(lab, before)
