"""Beside a submit gate people's profiles run: no engine on loopback may answer everyone there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lattice.base.signatures import SigningKey
from lattice.server.config.load import check_server_config

SLURM = "slurm: {rest_url: 'unix:/run/slurmrestd.socket'}\n"
BESIDE = "answers everyone on loopback, and people's profiles run there beside the gate"
OPEN = {
    "telemetry.tsdb_endpoint": "telemetry: {tsdb_endpoint: 'http://127.0.0.1:8428'}\n",
    "quorum.endpoints[1]": (
        "quorum: {endpoints: ['https://etcd.example:2379', 'https://localhost:2379']}\n"
    ),
    "slurm.rest_url": "slurm: {rest_url: 'http://[::1]:6820'}\n",
}
CLOSED = {
    "a password": (
        "telemetry: {tsdb_endpoint: 'http://127.0.0.1:8428', tsdb_username: lattice, "
        "tsdb_password_file: secret}\n"
    ),
    "a bearer token": (
        "telemetry: {tsdb_endpoint: 'http://127.0.0.1:8428', tsdb_bearer_file: secret}\n"
    ),
    "another host": "telemetry: {tsdb_endpoint: 'https://store.example:8428'}\n",
    "a Slurm token": "slurm: {rest_url: 'http://127.0.0.1:6820', token_file: secret, user: x}\n",
    "a certificate": (
        "quorum: {endpoints: ['https://127.0.0.1:2379'], cert: secret, key: secret}\n"
    ),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    SigningKey.generate().save(tmp_path / "gate.key")
    (tmp_path / "secret").write_text("sesame\n")
    (tmp_path / "secret").chmod(0o600)
    return tmp_path


def problems(folder: Path, text: str, gate: str = "") -> list[str]:
    file = folder / "server.yaml"
    slurm = "" if "slurm:" in text else SLURM
    beside = f"gate: {{socket: /run/gate, grant_key: gate.key{gate}}}\n"
    file.write_text(slurm + text + beside)
    found = check_server_config(file, {}).problems
    return [re.sub(r"^\S*/server\.yaml(:\d+)?: ", "", each) for each in found]


@pytest.mark.spec("OPS-7", "TOP-4")
@pytest.mark.threat("profile-loopback")
@pytest.mark.parametrize("path", OPEN)
def test_an_engine_that_answers_everyone_beside_the_gate_is_refused(
    path: str, folder: Path
) -> None:
    (problem,) = problems(folder, OPEN[path])
    assert problem.startswith(f"{path}: {BESIDE}: set ")
    assert problem.endswith("or give the gate a network of its own (gate.own_network)")


@pytest.mark.spec("OPS-7")
@pytest.mark.parametrize("name", CLOSED)
def test_an_engine_that_asks_for_a_credential_may_stand_there(name: str, folder: Path) -> None:
    assert problems(folder, CLOSED[name]) == []


@pytest.mark.spec("OPS-7")
@pytest.mark.parametrize("path", OPEN)
def test_a_gate_with_a_network_of_its_own_reaches_none_of_them(path: str, folder: Path) -> None:
    assert problems(folder, OPEN[path], ", own_network: true") == []


@pytest.mark.spec("OPS-7")
@pytest.mark.parametrize("path", OPEN)
def test_without_a_gate_nobody_but_the_server_is_there(path: str, folder: Path) -> None:
    file = folder / "server.yaml"
    file.write_text(("" if "slurm:" in OPEN[path] else SLURM) + OPEN[path])
    assert check_server_config(file, {}).problems == ()


@pytest.mark.spec("OPS-7")
def test_a_network_of_its_own_without_a_gate_is_a_mistake(folder: Path) -> None:
    file = folder / "server.yaml"
    file.write_text(SLURM + "gate: {own_network: true}\n")
    (problem,) = check_server_config(file, {}).problems
    assert "gate.own_network: needs gate.socket too" in problem
