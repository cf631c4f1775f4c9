"""Which FUSE connections stand in a list of mounts."""

from __future__ import annotations

from lab.fuse import connection_numbers

MOUNTS = """\
22 1 254:0 / / rw,relatime - ext4 /dev/vda1 rw
27 22 0:51 / /mnt/with\\040blank rw shared:3 - fuse.sshfs alice@host: rw,user_id=3001
28 22 0:52 / /mnt/plain rw - fuse x rw
29 22 0:33 / /sys/fs/fuse/connections rw - fusectl fusectl rw
30 22 8:17 / /mnt/disk rw - fuseblk /dev/sdb1 rw
31 22 0:60 / /tmp/fuse rw - tmpfs fuse.not rw
nonsense
"""


def test_those_of_file_systems_in_user_space_and_no_others() -> None:
    assert connection_numbers(MOUNTS) == {51, 52}


def test_no_mounts_have_none() -> None:
    assert connection_numbers("") == frozenset()
