"""An image of tools is opened by its owner's rights: user, group and further groups."""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable
from pathlib import Path

import pytest

from lattice.helper import tools
from lattice.helper.job_entry import CanNotEnter, Owner
from lattice.helper.privilege import Kernel

UID, GID, SHARED = 43_001, 43_001, 43_900
OWNER = Owner(
    account=pwd.struct_passwd(("alice", "x", UID, GID, "", "/", "/bin/sh")), groups=(GID, SHARED)
)


def _in_a_process(act: Callable[[], str]) -> str:
    """What it answers; ids that it changes are those of a child."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(writer, act().encode())
        except BaseException as error:  # noqa: BLE001 - nothing may unwind into the tests
            os.write(writer, f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answer:
        found = answer.read()
    os.waitpid(pid, 0)
    return found


@pytest.mark.spec("ALLOC-5")
@pytest.mark.threat("foreign-image")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can take another's rights")
@pytest.mark.parametrize(
    ("uid", "gid", "mode", "answer"),
    [
        (0, 0, 0o640, "refused"),
        (0, 0, 0o600, "refused"),
        (0, SHARED, 0o640, "opened"),
        (UID, 0, 0o400, "opened"),
        (0, GID, 0o040, "opened"),
        (UID + 1, 0, 0o640, "refused"),
        (0, 0, 0o644, "opened"),
    ],
)
def test_an_image_opens_for_its_owner_alone(
    tmp_path: Path, uid: int, gid: int, mode: int, answer: str
) -> None:
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.geteuid() and folder.name.startswith(
            ("pytest", "popen", "test")
        ):
            folder.chmod(0o755)
    image = tmp_path / "tools.squashfs"
    image.write_bytes(b"hsqs")
    os.chown(image, uid, gid)
    image.chmod(mode)

    def act() -> str:
        try:
            os.close(tools._open(Kernel(), OWNER, str(image)))
        except CanNotEnter as refusal:
            return str(refusal)
        return "opened"

    refused = f"alice can't open {image}: Permission denied"
    assert _in_a_process(act) == (refused if answer == "refused" else answer)


class _Files(Kernel):
    """Notes who files are met as."""

    def __init__(self) -> None:
        self.met: list[tuple[str, int]] = []

    def set_file_user(self, uid: int) -> None:
        self.met.append(("user", uid))

    def set_file_group(self, gid: int) -> None:
        self.met.append(("group", gid))


@pytest.mark.spec("ALLOC-5")
@pytest.mark.threat("foreign-image")
@pytest.mark.parametrize("name", ["image", "absent"])
def test_whatever_comes_of_it_root_is_root_again(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "image").touch()
    groups: list[tuple[int, ...]] = []
    monkeypatch.setattr(os, "setgroups", groups.append)
    kernel = _Files()
    try:
        os.close(tools._open(kernel, OWNER, str(tmp_path / name)))
    except CanNotEnter:
        assert name == "absent"
    assert groups == [OWNER.groups]
    assert set(kernel.met[:2]) == {("user", UID), ("group", GID)}
    assert set(kernel.met[2:]) == {("user", 0), ("group", 0)}
