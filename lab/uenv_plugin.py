"""A uenv plugin for the lab's Slurm, as a site may have one: `uenv_plugin.c`, compiled.

It is there only while a test asks for it: a node that was upgraded would find the plugin of another
release, which Slurm does not load.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lab.command import run
from lab.laboratory import Lab

PLACE, TOOLS_PLACE = "/user-environment", "/user-tools"
_SOURCE = Path(__file__).with_suffix(".c")


@contextmanager
def uenv_plugin(lab: Lab) -> Iterator[None]:
    """Slurm has the plugin, and the nodes have the folders where it mounts."""
    etc = lab.layout.slurm_conf.parent
    library, stack = etc / "uenv.so", etc / "plugstack.conf"
    words = ("-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror")
    version = f"-DSLURM_VERSION={_version(lab.slurm.release)}"
    run(["cc", *words, version, "-o", str(library), str(_SOURCE)])
    library.chmod(0o755)
    nodes = [node for node in lab.slurm.nodes.values() if node.alive]
    for node in nodes:
        node.run(["mkdir", "-p", PLACE, TOOLS_PLACE])
    # Required: Slurm passes over what a plugin says that is only optional.
    stack.write_text(f"required {library} {PLACE}\n")
    try:
        yield
    finally:
        stack.unlink()
        for node in nodes:
            if node.alive:
                node.run(["rmdir", PLACE, TOOLS_PLACE], check=False)


def _version(release: str) -> str:
    """Slurm compares the year and the month, not the patch."""
    year, month = release.split(".")
    return f"{int(year) << 16 | int(month) << 8:#x}"
