"""Pages for administrators against the code: ports, messages, variables, commands."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import yaml

from lattice.agent.sections import AgentConfig
from lattice.base.address import Address
from lattice.server.config.api_section import ApiSection
from lattice.server.setup import site_files

ROOT = Path(__file__).resolve().parents[2]
OPERATE = ROOT / "docs" / "operate"
_DIFFERS = "…"


def test_the_table_of_ports_has_the_defaults_of_the_code() -> None:
    page = (OPERATE / "ports.md").read_text()
    rows = re.findall(r"^\| `api\.(\w+)` \| `([^`]+)` \| ([^|]+) \|", page, re.MULTILINE)
    api = ApiSection()
    listeners = {
        name: str(value)
        for name in ApiSection.__dataclass_fields__
        if name.endswith("_listen") and isinstance(value := getattr(api, name), Address)
    }
    assert {name: default for name, default, _ in rows} == listeners
    set_up = {
        "rest_listen": site_files.REST_PORT,
        "grpc_listen": site_files.GRPC_PORT,
        "agent_listen": site_files.AGENT_PORT,
        "lane_listen": site_files.LANE_PORT,
    }
    for name, default, with_setup in rows:
        shown = default if with_setup == "the same" else with_setup.strip("`")
        assert Address.parse(shown).port == set_up[name]
    assert api.metrics_listen == ""
    assert AgentConfig().metrics.listen == ""


def texts() -> tuple[str, ...]:
    """Every text in the code, with a mark where a value is put in."""
    found = []
    for file in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
            elif isinstance(node, ast.JoinedStr):
                parts = (
                    each.value if isinstance(each, ast.Constant) else _DIFFERS
                    for each in node.values
                )
                found.append("".join(str(each) for each in parts))
    return tuple(found)


def messages() -> list[str]:
    return re.findall(r"^### (.+)$", (OPERATE / "troubleshooting.md").read_text(), re.MULTILINE)


def test_each_message_of_the_troubleshooting_page_is_one_of_the_code() -> None:
    found = texts()
    assert [each for each in messages() if not _is_among(found, each)] == []


def _is_among(texts: tuple[str, ...], message: str) -> bool:
    parts = [each for each in message.split(_DIFFERS) if each]
    pattern = re.compile(".*".join(map(re.escape, parts)), re.DOTALL)
    return any(pattern.search(each) for each in texts if parts[0] in each)


def test_the_table_of_variables_has_those_of_the_role() -> None:
    role = ROOT / "infra/ansible/roles/lattice"
    defaults = yaml.safe_load((role / "defaults/main.yml").read_text())
    rows = re.findall(r"^\| `(lattice_\w+)` \|", (OPERATE / "ansible.md").read_text(), re.MULTILINE)
    groups = {"lattice_servers", "lattice_nodes", "lattice_logins"}
    assert {*rows} - groups == {*defaults}


def test_stored_records_are_all_in_the_page_on_data_protection() -> None:
    page = (OPERATE / "data-protection.md").read_text()
    others = {"cluster", "doctor", "drains", "enrolments", "links", "nodes", "replicas", "trust"}
    others |= {"application", "logs"}  # a content type, and a folder of the object store
    prefixes = set()
    for file in (ROOT / "src/lattice").rglob("*.py"):
        if {"features", "server", "domain"} & {*file.parts}:
            found = re.findall(
                r'^_?[A-Z]+ = "([a-z]+)/(?:[a-z/]*)"$', file.read_text(), re.MULTILINE
            )
            prefixes |= {*found}
    assert {"attach", "locks", "reads", "shares", "slots", "submits", "telemetry"} <= prefixes
    unknown = [each for each in prefixes - others if f"`{each}/" not in page]
    assert unknown == []
