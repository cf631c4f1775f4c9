"""Being another user for a moment: what the kernel tells the other end of a socket."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def being(user: str) -> Iterator[None]:
    """Connect and open files as this account, and be root again afterwards."""
    account = pwd.getpwnam(user)
    os.setegid(account.pw_gid)
    os.seteuid(account.pw_uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
