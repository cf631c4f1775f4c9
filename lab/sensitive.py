"""Sensitive work in a lab: what its servers need before they start with a vCluster for it.

They don't have it usually: with it every server overwrites freed memory, which costs time.
"""

from __future__ import annotations

from typing import Any

import yaml

from lab.files import give
from lab.laboratory import Lab
from lab.seaweedfs import AUDIT_BUCKET, SENSITIVE_BUCKET
from lab.server import Server
from lab.users import SERVER_USER

VCLUSTER = "sensitive"
"""The view, and its partition."""
_SITE_KEY = "0f1e2d3c4b5a6978" * 4


def serve_sensitive_work(lab: Lab) -> dict[str, str]:
    """Start the servers again with it; the configurations before, for `serve_as_before`."""
    keys = lab.layout.state / "site-keys"
    keys.touch(mode=0o600)
    keys.write_text(f"site-1 {_SITE_KEY}\n")
    give(keys, SERVER_USER)
    before = {each.name: each.config_file.read_text() for each in lab.servers}
    for server in lab.servers:
        sections: dict[str, Any] = yaml.safe_load(before[server.name])
        view = {"name": VCLUSTER, "kind": "sensitive", "partition": VCLUSTER}
        sections["vclusters"] = [*sections["vclusters"], view]
        sections["audit"] = sections.get("audit", {}) | {"bucket": AUDIT_BUCKET}
        sections["sensitive"] = {"bucket": SENSITIVE_BUCKET, "keys_file": str(keys)}
        server.write_config(sections)
        _restart(server)
    return before


def serve_as_before(lab: Lab, before: dict[str, str]) -> None:
    """The servers start again with these configurations."""
    for server in lab.servers:
        server.write_config(yaml.safe_load(before[server.name]))
        _restart(server)


def _restart(server: Server) -> None:
    server.stop()
    server.start()
