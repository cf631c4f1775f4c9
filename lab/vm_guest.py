"""What runs inside a virtual machine: the first program of its kernel, and what makes it a node.

Text only. The guest's root is a file tree of the machine, read through virtiofs below a tmpfs. Of
the VM node it is the control room's own, so the guest has every program of the machine, the lab's
/etc/hosts and accounts, and can change nothing but /home. What the host may rewrite while the guest
runs is copied first: a file that is replaced below an overlay answers ESTALE for ever after.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from lab.slurm_config import SlurmFiles, cgroup_conf_v2

MODULES = ("virtio_pci", "virtiofs", "overlay", "virtio_net")
"""What the guest needs of its kernel, without what these depend on."""

INITRD_INIT = """\
#!/bin/busybox sh
B=/bin/busybox
$B mount -t proc proc /proc; $B mount -t sysfs sys /sys; $B mount -t devtmpfs dev /dev
for module in $($B cat /modules/order); do $B insmod /modules/$module; done
$B mount -t virtiofs root /lower; $B mount -t tmpfs tmpfs /upper; $B mkdir -p /upper/up /upper/work
$B mount -t overlay overlay -o lowerdir=/lower,upperdir=/upper/up,workdir=/upper/work /root
for folder in proc sys dev; do $B mount --move /$folder /root/$folder; done
for word in $($B cat /root/proc/cmdline); do
  case $word in guest=*) guest=${word#guest=};; esac
done
exec $B switch_root /root /bin/bash $guest
"""

_CONTROLLERS = "+cpu +cpuset +io +memory +pids"

BEGIN = """\
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8
mount -t cgroup2 none /sys/fs/cgroup
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts; mount -t tmpfs tmpfs /dev/shm; mount -t tmpfs tmpfs /run
mount -t tracefs nodev /sys/kernel/tracing
ip link set lo up; ip link set eth0 up
"""
"""Pid 1 of a guest after the initrd begins with it: pure cgroup v2."""

UP = " is up after "
"""In the line of the console that comes when the door is open."""

DOOR = f"""\
stty -F /dev/ttyS1 raw -echo; exec 4<>/dev/ttyS1
echo "guest $(hostname){UP}$(cut -d' ' -f1 /proc/uptime) s, kernel $(uname -r)"
while :; do
  read -r -u 4 script || {{ sleep 1; continue; }}
  base64 -d <<<"$script" >/run/door.script
  bash /run/door.script >/run/door.out 2>/run/door.err </dev/null
  echo "$? $(base64 -w0 /run/door.out)= $(base64 -w0 /run/door.err)=" >&4
done
"""
"""The second serial line, which ends in a socket only root on the host can open.

One base64 script a line in, "status stdout stderr" back.
"""


def guest_init(files: SlurmFiles, name: str, address: str) -> str:
    """Pid 1 of the VM node after the initrd: munge, slurmd, and the door."""
    munge = files.munge
    return f"""\
{BEGIN}\
export SLURM_CONF={files.etc}/slurm.conf
hostname {name}
mkdir -p /sys/fs/cgroup/init /sys/fs/cgroup/system.slice
echo $$ >/sys/fs/cgroup/init/cgroup.procs
echo '{_CONTROLLERS}' >/sys/fs/cgroup/cgroup.subtree_control
echo '{_CONTROLLERS}' >/sys/fs/cgroup/system.slice/cgroup.subtree_control
mount -t virtiofs home /home
ip addr add {address}/24 dev eth0
mkdir -p {files.job_tmp} {files.node(name)}/spool {files.state}/log
mount -t tmpfs tmpfs {files.job_tmp}
own() {{  # FOLDER
  cp -a $1 /run/own; mount -t tmpfs -o mode=755 tmpfs $1; mv /run/own/* $1; rm -r /run/own
}}
own {files.etc}
cat >{files.etc}/cgroup.conf <<'END'
{cgroup_conf_v2()}END
rm -f {munge}/sock*; own {munge}; chown munge: {munge}
setpriv --reuid=munge --regid=munge --clear-groups munged --key-file={munge}/key \\
  --socket={munge}/sock --pid-file={munge}/pid --log-file={munge}/log --seed-file={munge}/seed
slurmd -D -N {name} &
{DOOR}"""


def bare_init(shared: Mapping[str, Path], commands: Sequence[str]) -> str:
    """Pid 1 of a machine without a lab: shared folders by their tags, its commands, the door."""
    mounts = [f"mkdir -p {path}; mount -t virtiofs {tag} {path}" for tag, path in shared.items()]
    return "\n".join([BEGIN, "hostname guest", *mounts, *commands, DOOR])
