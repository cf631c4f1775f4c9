"""A real MLflow server in a lab, and Lattice servers that ask it."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from lab.laboratory import Lab
from tests.eventually import eventually

MLFLOW_PORT = 5055
MLFLOW_FILE = "mlflow.db"
MLFLOW_PATIENCE_S = 400.0
"""MLflow alone takes a minute to start on a busy machine."""


@contextmanager
def asking_mlflow(lab: Lab, *, address: str = "127.0.0.1") -> Iterator[None]:
    """Servers that ask the MLflow server in the control room."""
    before = {each: yaml.safe_load(each.config_file.read_text()) for each in lab.servers}
    try:
        for server, sections in before.items():
            runs = {"mlflow_url": f"http://{address}:{MLFLOW_PORT}"}
            server.write_config(sections | {"runs": runs})
            server.process.restart()
        yield
    finally:
        for server, sections in before.items():
            server.write_config(sections)
            server.process.restart()


@contextmanager
def mlflow_of(lab: Lab, program: Path, home: Path, *, address: str = "127.0.0.1") -> Iterator[Any]:
    """MLflow as alice, on her file."""
    argv = [program, "server", "--workers", "1", "--host", address, "--port", str(MLFLOW_PORT)]
    argv += ["--allowed-hosts", "*"]
    argv += ["--backend-store-uri", f"sqlite:///{home / MLFLOW_FILE}"]
    environment = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    process = lab.control.room.popen(
        [str(each) for each in argv],
        user="alice",
        cwd=str(home),
        env=environment,
        stdout=None,
        stderr=None,
    )
    asked = f"import urllib.request as u; u.urlopen('http://{address}:{MLFLOW_PORT}/health').read()"
    try:
        eventually(
            lambda: lab.ctl(["python3", "-c", asked], check=False).returncode == 0,
            patience_s=MLFLOW_PATIENCE_S,
            pause_s=1.0,
        )
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
