"""An image that whole nodes have mounted: recorded terminals need one that the site has signed."""

from __future__ import annotations

import base64
import hashlib
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from lab.helper import IMAGE_KEY
from lab.laboratory import Lab
from lattice.domain.image_signature import signed_text

_FOLDER = "uenv"
_IMAGE = "tools.squashfs"
_MOUNT = "/mnt"


def mount_image(lab: Lab, *nodes: str) -> Path:
    """Every job that starts on these nodes runs in it. It has one small file, and no signature."""
    folder = lab.layout.home / _FOLDER
    folder.mkdir(mode=0o755, exist_ok=True)
    image = folder / _IMAGE
    with TemporaryDirectory() as content:
        (Path(content) / "a-tool").write_text("x")
        subprocess.run(
            ["mksquashfs", content, str(image), "-noappend", "-quiet", "-no-progress"], check=True
        )
    image.chmod(0o644)
    words = ["-t", "squashfs", "-o", "loop,ro", f"/home/{_FOLDER}/{_IMAGE}", _MOUNT]
    for name in nodes:
        lab.node(name).run(["mount", *words])
    return image


def sign(image: Path) -> None:
    """With the key that the lab's helpers trust."""
    signature = IMAGE_KEY.sign(signed_text(hashlib.sha256(image.read_bytes()).digest()))
    image.with_name(f"{image.name}.sig").write_bytes(base64.b64encode(signature))


@contextmanager
def mounted_image(lab: Lab, *nodes: str) -> Iterator[Path]:
    """The same, for a while."""
    try:
        yield mount_image(lab, *nodes)
    finally:
        for name in nodes:
            lab.node(name).run(["umount", "-l", _MOUNT], check=False)
        for each in (lab.layout.home / _FOLDER).iterdir():
            each.unlink()


@contextmanager
def signed_image(lab: Lab, *nodes: str) -> Iterator[Path]:
    """The same with a signature."""
    with mounted_image(lab, *nodes) as image:
        sign(image)
        yield image
