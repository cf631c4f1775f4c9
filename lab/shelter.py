"""The mounts every namespace of the lab starts with, as one shell function.

/home becomes the lab's own. Programs that stand in somebody's home (the checkout, the virtual
environment, the Python it was made from) stay reachable at their own paths, also for accounts
that may not enter /root; everything else of those homes is out of sight.

With a root of another release, that becomes the root of the namespace. What is written there goes
to memory. The machine's accounts, the lab's folder, all roots and the machine's Python are
reachable at their own paths. `renew_programs` puts the programs of a newer release in place, under
processes that run.
"""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path

from lab.earlier import RELEASES
from lab.other_python import PYTHONS
from lab.slurm_root import ROOTS, SlurmRoot

_HOMES = (Path("/home"), Path("/root"))
_MODULES = Path("/usr/lib/modules")
"""Of the machine's kernels, of which the VM node boots one."""
_CHECKOUT = Path(__file__).resolve().parents[1]

SHELTER = r"""
enter_root() {  # ROOT STATE UNIT PATH...
  local held=$2/shelter/$3-root state=$2 path new
  new=$held/root
  mkdir -p "$held"; mount -t tmpfs -o mode=755 tmpfs "$held"
  mkdir "$held/upper" "$held/work" "$new"
  mount -t overlay -o "lowerdir=$1,upperdir=$held/upper,workdir=$held/work" overlay "$new"
  shift 3
  chmod 755 "$new/root"
  for path in /dev /proc /sys; do mount --rbind "$path" "$new$path"; done
  for path in /run /tmp; do mount -t tmpfs -o mode=1777 tmpfs "$new$path"; done
  for path in /etc/passwd /etc/group /etc/shadow; do mount --bind "$path" "$new$path"; done
  for path in "$state" "$@"; do
    if [ -d "$path" ]; then mkdir -p "$new$path"
    else mkdir -p "$new${path%/*}"; touch "$new$path"; fi
    mount --bind "$path" "$new$path"
  done
  mount --bind "$state/etc/hosts" "$new/etc/hosts"
  mount --bind "$state/home" "$new/home"
  mkdir "$new/machine"
  cd "$new"
  pivot_root . machine
  cd /
  umount -l /machine
}
renew_programs() {  # ROOT STATE UNIT PATH...
  local held=$2/shelter/$3-renewed root=$1 path number=0
  mkdir -p "$held"; mount -t tmpfs -o mode=755 tmpfs "$held"
  mkdir "$held/upper" "$held/work" "$held/kept"
  shift 3
  for path; do
    case $path in /usr/*) ;; *) continue;; esac
    number=$((number + 1))
    if [ -d "$path" ]; then mkdir "$held/kept/$number"; else touch "$held/kept/$number"; fi
    mount --bind "$path" "$held/kept/$number"
  done
  mount -t overlay -o "lowerdir=$root/usr,upperdir=$held/upper,workdir=$held/work" overlay /usr
  number=0
  for path; do
    case $path in /usr/*) ;; *) continue;; esac
    number=$((number + 1))
    if [ -d "$path" ] || [ -d "$held/kept/$number" ]; then mkdir -p "$path"
    else mkdir -p "${path%/*}"; touch "$path"; fi
    mount --move "$held/kept/$number" "$path"
  done
  mount --bind "$root/etc/ld.so.cache" /etc/ld.so.cache
}
shelter() {  # ROOT STATE UNIT PATH...
  if [ "$1" ]; then enter_root "$@"; return; fi
  shift
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


def kept_paths(root: SlurmRoot | None = None) -> list[str]:
    """What must stay reachable below a covered home or in another root, outermost only."""
    needed = {_CHECKOUT, Path(sys.prefix).resolve(), Path(sys.prefix), Path(sys.base_prefix)}
    if root is None:
        below = {path for path in needed if any(path.is_relative_to(home) for home in _HOMES)}
    else:
        below = needed | {each for each in (ROOTS, PYTHONS, RELEASES, _MODULES) if each.exists()}
        if Path(sys.base_prefix) == Path("/usr"):
            # A Python of the distribution: its release stands in the names of its files.
            files = {Path(sys.executable).resolve(), Path(sysconfig.get_path("stdlib"))}
            below = (needed - {Path("/usr")}) | files
    return sorted(str(path) for path in below if not below.intersection(path.parents))
