"""An image that a whole node has mounted, for recorded terminals."""

from __future__ import annotations

import base64
import hashlib
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lab.helper import IMAGE_KEY
from lab.laboratory import Lab
from lattice.domain.image_signature import signed_text


@contextmanager
def mounted_image(lab: Lab, content: Path, node: str = "n1") -> Iterator[Path]:
    """It has one small file, and no signature yet."""
    folder = lab.layout.home / "uenv"
    folder.mkdir(mode=0o755, exist_ok=True)
    made = folder / "tools.squashfs"
    (content / "a-tool").write_text("x")
    subprocess.run(["mksquashfs", str(content), str(made), "-noappend", "-quiet"], check=True)
    made.chmod(0o644)
    place = lab.node(node)
    place.run(["mount", "-t", "squashfs", "-o", "loop,ro", "/home/uenv/tools.squashfs", "/mnt"])
    try:
        yield made
    finally:
        place.run(["umount", "-l", "/mnt"])
        for each in folder.iterdir():
            each.unlink()


def sign(image: Path) -> None:
    """With the key that the lab's helpers trust."""
    signed = IMAGE_KEY.sign(signed_text(hashlib.sha256(image.read_bytes()).digest()))
    image.with_name(image.name + ".sig").write_bytes(base64.b64encode(signed))
