"""Recovery as the account that owns a state folder, also when root begins it.

The account can put a link into its folder. Root would follow it, and leave files there that the
server can't open afterwards. So the process becomes that account before it touches the folder.
"""

from __future__ import annotations

import os
import pwd
from pathlib import Path


def become_owner(folder: Path) -> None:
    """Exchange root's rights for those of the folder's owner, until this process ends.

    Nothing happens for others than root, for a folder of root's, and if there is no such folder.
    """
    if os.geteuid() != 0:
        return
    try:
        found = folder.stat()
    except OSError:
        return
    if found.st_uid == 0:
        return
    try:
        account = pwd.getpwuid(found.st_uid)
    except KeyError:
        os.setgroups([])
        os.setgid(found.st_gid)
    else:
        os.initgroups(account.pw_name, account.pw_gid)
        os.setgid(account.pw_gid)
    os.setuid(found.st_uid)
