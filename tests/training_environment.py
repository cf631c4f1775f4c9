"""The environment of a real training: Debian's PyTorch, MLflow's client, OpenTelemetry.

`lattice-run` of this checkout is installed there, as a site would do it. No program names it.
"""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TORCH = Path("/usr/lib/python3/dist-packages/torch")
SYSTEM_PYTHON = Path("/usr/bin/python3")
_WANTED = ROOT / "requirements" / "training.txt"


def training_environment() -> Path:
    """The environment, made once, where jobs of a lab reach it."""
    assert TORCH.exists(), "PyTorch is missing: `scripts/setup long` installs it"
    within = Path(sys.prefix) / "share"
    within.mkdir(parents=True, exist_ok=True)
    folder = within / f"training-{sha256(_WANTED.read_bytes()).hexdigest()[:8]}"
    uv = shutil.which("uv", path=str(Path(sys.executable).parent)) or "uv"
    install = [uv, "pip", "install", "-q", "--python", str(folder)]
    with (within / "training.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "done").exists():
            # Debian's own Python, because its PyTorch is built for that one.
            make = ["-m", "venv", "--clear", "--without-pip", "--system-site-packages"]
            subprocess.run([SYSTEM_PYTHON, *make, folder], check=True)
            subprocess.run([*install, "-r", _WANTED], check=True)
            (folder / "done").touch()
        plug = ROOT / "packages" / "lattice-run"
        subprocess.run([*install, "--no-deps", "--force-reinstall", plug], check=True)
    return folder
