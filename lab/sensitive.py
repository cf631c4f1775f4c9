"""Sensitive work in a lab: what its servers need before they start with a vCluster for it.

They don't have it usually: with it every server overwrites freed memory, which costs time.
"""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Any

import yaml

from lab.files import give
from lab.laboratory import Lab
from lab.seaweedfs import SENSITIVE_BUCKET
from lab.server import Server
from lab.users import SERVER_USER

VCLUSTER = "sensitive"
"""The view, and its partition."""
FIRST_SITE_KEY = "site-1"


def site_keys_file(lab: Lab) -> Path:
    """The file with the keys of the site, which all servers read."""
    return lab.layout.state / "site-keys"


def site_key(name: str) -> str:
    """The key of that name, in hex."""
    return sha256(f"lab's key of the site {name}".encode()).hexdigest()


def write_site_keys(lab: Lab, *names: str) -> None:
    """Replace the file, in one step; the last key wraps."""
    keys = site_keys_file(lab)
    partial = keys.with_name("site-keys.partial")
    partial.touch(mode=0o600)
    partial.write_text("".join(f"{each} {site_key(each)}\n" for each in names))
    give(partial, SERVER_USER)
    partial.rename(keys)


def serve_sensitive_work(lab: Lab) -> dict[str, str]:
    """Start the servers again with it; the configurations before, for `serve_as_before`."""
    write_site_keys(lab, FIRST_SITE_KEY)
    before = {each.name: each.config_file.read_text() for each in lab.servers}
    for server in lab.servers:
        sections: dict[str, Any] = yaml.safe_load(before[server.name])
        view = {"name": VCLUSTER, "kind": "sensitive", "partition": VCLUSTER}
        others = [each for each in sections["vclusters"] if each["name"] != VCLUSTER]
        sections["vclusters"] = [*others, view]
        keys = str(site_keys_file(lab))
        sections["sensitive"] = {"bucket": SENSITIVE_BUCKET, "keys_file": keys}
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
