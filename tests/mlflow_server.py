"""A real MLflow tracking server, in an environment of its own: it has some 100 packages."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx2

from scripts.packaging.command import CACHE
from tests.eventually import eventually

ROOT = Path(__file__).resolve().parents[1]
_WANTED = ROOT / "requirements" / "mlflow.txt"
_UP_S = 400.0
"""It loads some hundred packages, beside whatever else runs."""


def mlflow_environment(within: Path = CACHE) -> Path:
    """The environment, made once: MLflow, and `lattice-run` of this checkout.

    Jobs of a lab reach it only within the environment of the checkout.
    """
    within.mkdir(parents=True, exist_ok=True)
    with (within / "mlflow.lock").open("w") as lock:
        # Several workers may need it at once.
        fcntl.flock(lock, fcntl.LOCK_EX)
        return _made(within)


def _made(within: Path) -> Path:
    folder = within / f"mlflow-{sha256(_WANTED.read_bytes()).hexdigest()[:8]}"
    uv = shutil.which("uv", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    pip = [uv, "pip", "install", "--python", folder] if uv else [folder / "bin" / "pip", "install"]
    if not (folder / "done").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        subprocess.run([*pip, "-q", "-r", _WANTED], check=True)
        (folder / "done").touch()
    plug = ROOT / "packages" / "lattice-run"
    subprocess.run([*pip, "-q", "--no-deps", "--force-reinstall", plug], check=True)
    return folder


@dataclass(frozen=True)
class MlflowServer:
    """A server that runs, and its SQLite file."""

    url: str
    file: Path
    environment: Path

    def post(self, path: str, **body: Any) -> dict[str, Any]:
        """Asks its REST interface."""
        answer = httpx2.post(f"{self.url}/api/2.0/mlflow/{path}", json=body, trust_env=False)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found


@contextmanager
def mlflow_server(folder: Path) -> Iterator[MlflowServer]:
    """On loopback, with its file in the folder."""
    environment = mlflow_environment()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    file = folder / "mlflow.db"
    argv = [environment / "bin" / "mlflow", "server", "--workers", "1", "--host", "127.0.0.1"]
    argv += ["--port", str(port), "--backend-store-uri", f"sqlite:///{file}"]
    argv += ["--default-artifact-root", str(folder / "artifacts")]
    with (folder / "mlflow.log").open("wb") as log:
        process = subprocess.Popen(
            argv,
            stdout=log,
            stderr=log,
            cwd=folder,
            start_new_session=True,
            env={**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
        )
    url = f"http://127.0.0.1:{port}"
    try:
        eventually(lambda: _is_up(url), patience_s=_UP_S, pause_s=0.5)
        yield MlflowServer(url, file, environment)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _is_up(url: str) -> bool:
    try:
        return httpx2.get(f"{url}/health", trust_env=False).status_code == 200
    except httpx2.HTTPError:
        return False
