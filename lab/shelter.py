"""The mounts every namespace of the lab starts with, as one shell function.

/home becomes the lab's own. Programs that stand in somebody's home (the checkout, the virtual
environment, the Python it was made from) stay reachable at their own paths, also for accounts
that may not enter /root; everything else of those homes is out of sight.
"""

from __future__ import annotations

import sys
from pathlib import Path

_HOMES = (Path("/home"), Path("/root"))
_CHECKOUT = Path(__file__).resolve().parents[1]

SHELTER = r"""
shelter() {  # STATE UNIT PATH...
  local state=$1 held=$1/shelter/$2 path cover_root= number=0
  shift 2
  mount --bind "$state/etc/hosts" /etc/hosts
  for path; do
    case $path in /root/*) cover_root=yes;; esac
    mkdir -p "$held/$number"; mount --bind "$path" "$held/$number"; number=$((number + 1))
  done
  mount --bind "$state/home" /home
  if [ "$cover_root" ]; then mount -t tmpfs -o mode=755 tmpfs /root; fi
  number=0
  for path; do
    mkdir -p "$path"; mount --move "$held/$number" "$path"; number=$((number + 1))
  done
}
"""


def kept_paths() -> list[str]:
    """What must stay reachable below a covered home, outermost only."""
    needed = {_CHECKOUT, Path(sys.prefix), Path(sys.base_prefix)}
    below = {path for path in needed if any(path.is_relative_to(home) for home in _HOMES)}
    return sorted(str(path) for path in below if not below.intersection(path.parents))
