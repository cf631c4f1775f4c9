"""Which libraries a part has, and that the page shows the newest result."""

from __future__ import annotations

import json

import pytest

from bench.footprint import libraries, normal, own_bytes, size_bytes, wanted_by
from scripts.footprint_page import PAGE, page, tables
from scripts.packaging.parts import PARTS


def test_requirements_of_the_asked_extras_are_wanted() -> None:
    texts = [
        "click>=8.3",
        "httpx2[http2, socks]>=2; python_version >= '3.11'",
        "grpcio>=1.76; extra == 'server'",
        'textual>=8.2; extra == "tui"',
    ]
    assert list(wanted_by(texts, ())) == [("click", ()), ("httpx2", ("http2", "socks"))]
    assert [name for name, _ in wanted_by(texts, ("server",))] == ["click", "httpx2", "grpcio"]
    assert normal("Backports.Zstd") == "backports-zstd"


@pytest.mark.spec("CLI-3")
def test_the_command_line_has_neither_grpc_nor_protobuf() -> None:
    client, server, agent = map(libraries, PARTS)
    assert {"click", "msgspec", "pyyaml"} <= client.keys()
    assert not {"grpcio", "protobuf", "cryptography"} & client.keys()
    assert {"grpcio", "protobuf", "cryptography", "obstore"} <= server.keys()
    assert {"grpcio", "nvidia-ml-py", "py-spy"} <= agent.keys()
    assert not {"obstore", "fastapi", "textual"} & agent.keys()
    assert size_bytes(server["grpcio"]) > size_bytes(client["click"]) > 0
    assert own_bytes() > 1_000_000


def test_the_page_has_the_newest_result() -> None:
    assert PAGE.read_text() == page(PAGE.read_text())


def test_a_table_has_a_row_for_each_process_and_part() -> None:
    figures = [{"name": "Lattice itself: on disk", "value": 5.0}]
    figures += [
        {
            "name": f"{part.name}: libraries on disk",
            "value": 20.0,
            "libraries": {"one": 12.0, "two": 8.0},
        }
        for part in PARTS
    ]
    figures += [
        {"name": f"{name}: {kind} at rest", "value": 40.4}
        for name in ("server", "gate", "agent", "helper")
        for kind in ("pss", "uss", "resident", "processor")
    ]
    result = "\n".join(json.dumps(each | {"rounds": 7, "seconds": 20.0}) for each in figures)
    shown = tables(result, "2026-01-01")
    assert "Measured on 2026-01-01: the median of 7 rounds of 20 s." in shown
    row = "| helper | each node | 40 MiB | 40 MiB | 40 MiB | 40.40 % of a core |"
    assert row in shown
    assert "agent and helper | 2 | 20 MiB | one 12.0, two 8.0 |" in shown
