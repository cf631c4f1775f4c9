"""Where an output may lie: by what the kernel says of mounts, never by asking a file system."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.helper.mounts import Mounts, mount_fault, read_mounts

LINES = """\
22 1 254:0 / / rw,relatime shared:1 master:2 - ext4 /dev/root rw,errors=remount-ro
23 22 0:21 / /proc rw - proc proc rw
24 22 0:40 / /home rw - nfs4 server:/a\\040-\\040b rw,vers=4.2
25 22 0:41 / /scratch rw - fuse.gluster x rw,user_id=0,group_id=0,allow_other
26 22 0:42 / /mnt rw - fuse.sshfs x rw,user_id=3001,group_id=3001
27 22 0:43 / /over rw - overlay overlay rw,lowerdir=/a
28 22 0:44 / /tmp rw - tmpfs none rw
broken line
29 22 nonsense / /x rw - ext4 x rw
"""
BY_KIND = {each.kind: each for each in read_mounts(LINES)}


def test_lines_are_read_and_others_left_out() -> None:
    found = read_mounts(LINES)
    assert [each.id for each in found] == [22, 23, 24, 25, 26, 27, 28]
    assert (found[0].id, found[0].device) == (22, os.makedev(254, 0))
    assert (found[0].kind, found[0].options) == ("ext4", ("rw", "errors=remount-ro"))


@given(st.text(alphabet=st.characters(codec="utf-8")), st.integers(0, 9))
def test_any_text_can_be_read(text: str, line: int) -> None:
    lines = LINES.splitlines()
    lines.insert(line, text)
    read_mounts("\n".join(lines))
    read_mounts(text)


def test_a_mount_is_found_by_itself_or_by_its_file_system() -> None:
    mounts = Mounts(read_mounts(LINES))
    nfs = BY_KIND["nfs4"]
    assert mounts.find(24, 0) == nfs
    assert mounts.find(None, os.makedev(0, 40)) == nfs
    assert mounts.find(999, os.makedev(0, 40)) == nfs
    assert mounts.find(999, os.makedev(9, 9)) is None


@pytest.mark.spec("LOG-2")
@pytest.mark.parametrize("kind", ["ext4", "nfs4", "fuse.gluster", "overlay", "tmpfs"])
def test_what_root_mounted_for_all_is_read(kind: str) -> None:
    assert mount_fault(BY_KIND[kind], None) == ""


@pytest.mark.spec("LOG-2")
@pytest.mark.threat("own-file-system")
@pytest.mark.parametrize("kind", ["proc", "fuse.sshfs"])
def test_what_is_made_up_or_a_user_s_is_not(kind: str) -> None:
    assert mount_fault(BY_KIND[kind], None)


@pytest.mark.spec("LOG-2")
@pytest.mark.threat("own-file-system")
@pytest.mark.parametrize(
    ("kind", "read"),
    [
        ("tmpfs", True),
        ("nfs4", True),
        ("ext4", True),
        ("overlay", False),
        # Root of a user's own namespace calls himself 0.
        ("fuse.gluster", False),
        ("fuse.sshfs", False),
        ("proc", False),
    ],
)
def test_what_only_the_job_sees(kind: str, *, read: bool) -> None:
    assert (mount_fault(None, BY_KIND[kind]) == "") is read


@pytest.mark.spec("LOG-2")
def test_what_nobody_sees_is_not_read() -> None:
    assert mount_fault(None, None)
