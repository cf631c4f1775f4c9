"""What all tests share: the lab, once a session, for those that ask for it."""

from __future__ import annotations

pytest_plugins = ["lab.fixtures"]
