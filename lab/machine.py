"""A whole Debian machine: systemd is process 1, the kernel is the suite's own, cgroup v2 only.

What a site installs is tried here. An image is made once for each suite and kept outside every lab;
each machine begins from it and forgets what it wrote. It is emulated, so it runs at a tenth of the
speed. It sees no network but its own; commands come in by SSH, through a port of loopback.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Self

from lab.command import LabError, run
from lab.slurm_root import mirror

MACHINES = Path("/var/cache/lattice-lab/machines")
NAME, ADDRESS = "n1", "10.0.2.15"
SUITES = ("bookworm", "trixie")
_PACKAGES = (
    # the machine
    *("systemd", "systemd-sysv", "udev", "dbus", "kmod", "linux-image-cloud-amd64"),
    *("busybox-static", "openssh-server", "procps", "iproute2", "python3", "curl", "less"),
    # a site with Slurm and accounting, that nobody prepared for Lattice
    *("munge", "slurmctld", "slurmd", "slurmdbd", "slurmrestd", "slurm-client"),
    *("slurm-wlm-basic-plugins", "slurm-wlm-plugins", "mariadb-server"),
)
_WITHOUT = (
    *("apt-daily.timer", "apt-daily-upgrade.timer", "dpkg-db-backup.timer", "fstrim.timer"),
    *("e2scrub_all.timer", "e2scrub_reap.service", "man-db.timer"),
)
"""Services that only take time in a machine that lives for minutes."""
_KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"
_DISK = "12G"
_MEMORY_MB = 2048
# An old processor without 16-byte exchanges is the quicker and the safer one to emulate.
_CPU = "Nehalem,+rdrand,-cx16"
_KERNEL_WORDS = (
    *("console=ttyS0", "rw", "oops=panic", "mitigations=off", "net.ifnames=0", "quiet"),
    *("systemd.show_status=error", "systemd.getty_auto=no", "TERM=dumb"),
)
_BOOT_S = 300.0
_INIT = """#!/bin/busybox sh
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t sysfs sys /sys
/bin/busybox mount -t devtmpfs dev /dev
while read -r module; do /bin/busybox insmod "/modules/$module"; done </modules/order
until /bin/busybox mount -t ext4 /dev/vda /root; do /bin/busybox sleep 0.1; done
for each in proc sys dev; do /bin/busybox mount --move "/$each" "/root/$each"; done
exec /bin/busybox switch_root /root /sbin/init
"""


@dataclass(frozen=True, slots=True)
class MachineImage:
    """The disk, the kernel and the key of the machines of one suite."""

    suite: str

    @property
    def folder(self) -> Path:
        """Its name changes with what it is made of."""
        made_of = sha256(
            repr((self.suite, _PACKAGES, _WITHOUT, _INIT, _DISK)).encode()
        ).hexdigest()[:8]
        return MACHINES / f"{self.suite}-{made_of}"

    def ensure(self) -> None:
        """Make it if it is missing. That takes about two minutes."""
        if self.folder.is_dir():
            return
        for old in MACHINES.glob(f"{self.suite}-????????"):
            shutil.rmtree(old)
        partial = self.folder.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(mode=0o700, parents=True)
        root = partial / "root"
        _make_root(self.suite, root)
        _configure(root, partial)
        _make_initrd(root, partial)
        disk = partial / "disk"
        run(["truncate", "-s", _DISK, str(disk)])
        options = "lazy_itable_init=1,root_owner=0:0"
        argv = ["mke2fs", "-q", "-t", "ext4", "-O", "^has_journal", "-E", options, "-m", "0"]
        run([*argv, "-d", str(root), str(disk)], timeout_s=600)
        shutil.rmtree(root)
        partial.rename(self.folder)


class Machine:
    """One running machine; `with Machine("bookworm") as machine: machine.run("uname -a")`."""

    def __init__(self, suite: str, folder: Path) -> None:
        """`folder` is for its sockets; a short path."""
        self.image = MachineImage(suite)
        self._folder = folder
        self._port = 0
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Boot, and wait until systemd has started everything."""
        self.image.ensure()
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        with (self._folder / "qemu.log").open("wb") as log:
            self._process = subprocess.Popen(
                self._qemu(),
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # What it writes to the disk goes to a file there that is deleted already.
                env={**os.environ, "TMPDIR": str(self._folder)},
                start_new_session=True,
            )
        deadline = time.monotonic() + _BOOT_S
        while self._ssh("true", "root", 30.0).returncode:
            if self._process.poll() is not None:
                raise LabError(f"qemu ended: {(self._folder / 'qemu.log').read_text()[-2000:]}")
            if time.monotonic() > deadline:
                raise LabError(f"no SSH after {_BOOT_S:g} s: {self.console[-2000:]}")
            time.sleep(1)
        self.run("systemctl is-system-running --wait || true", timeout_s=_BOOT_S)

    def stop(self) -> None:
        if self._process is None:
            return
        control = ["ssh", "-F", "none", "-o", f"ControlPath={self._folder}/ssh", "-O", "exit", NAME]
        run(control, check=False)
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        self._process = None

    @property
    def console(self) -> str:
        return (self._folder / "console").read_text(errors="replace")

    def run(
        self, script: str, *, user: str = "root", timeout_s: float = 300.0, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run a script of bash in a login shell of the user. Raises `LabError` if it fails."""
        done = self._ssh(script, user, timeout_s)
        if check and done.returncode:
            output = f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
            raise LabError(f"{script[:200]!r} as {user}: exit status {done.returncode}: {output}")
        return done

    def copy(self, files: Iterable[Path], folder: str) -> None:
        """Copy files into a folder of the machine."""
        names = [str(each) for each in files]
        shape = ["tar", "--transform", "s,.*/,,", "--owner=0", "--group=0", "-cPf", "-", *names]
        with subprocess.Popen(shape, stdout=subprocess.PIPE) as packed:
            argv = [*self._ssh_argv(), f"mkdir -p {folder} && tar -C {folder} -xf -"]
            done = subprocess.run(argv, stdin=packed.stdout, capture_output=True, check=False)
        if done.returncode or packed.returncode:
            raise LabError(f"not copied to {folder}: {done.stderr.decode()}")

    def _ssh(self, script: str, user: str, timeout_s: float) -> subprocess.CompletedProcess[str]:
        inner = ["bash", "-l"] if user == "root" else ["runuser", "-l", user, "-c", "bash -s"]
        argv = [*self._ssh_argv(), shlex.join(inner)]
        return run(argv, input=script, timeout_s=timeout_s, check=False)

    def _ssh_argv(self) -> list[str]:
        image = self.image.folder
        options = {
            "IdentitiesOnly": "yes",
            "BatchMode": "yes",
            "UserKnownHostsFile": str(image / "known_hosts"),
            "HostKeyAlias": NAME,
            "StrictHostKeyChecking": "yes",
            "HostKeyAlgorithms": "ssh-ed25519",
            "ConnectTimeout": "20",
            "ServerAliveInterval": "15",
            # One connection for all: a handshake takes a second in emulation.
            "ControlMaster": "auto",
            "ControlPath": f"{self._folder}/ssh",
            "ControlPersist": "60",
        }
        words = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
        login = ["-i", str(image / "key"), "-p", str(self._port), "root@127.0.0.1"]
        return ["ssh", "-F", "none", "-q", *words, *login]

    def _qemu(self) -> list[str]:
        image = self.image.folder
        forward = f"hostfwd=tcp:127.0.0.1:{self._port}-{ADDRESS}:22"
        return [
            *("qemu-system-x86_64", "-accel", "tcg,thread=multi", "-cpu", _CPU, "-smp", "2"),
            *("-m", str(_MEMORY_MB), "-nographic", "-nodefaults"),
            *("-kernel", str(image / "kernel"), "-initrd", str(image / "initrd")),
            *("-append", " ".join(_KERNEL_WORDS), "-serial", "file:console"),
            "-drive",
            f"if=virtio,format=raw,cache=unsafe,snapshot=on,file={image}/disk",
            *("-netdev", f"user,id=net,restrict=on,{forward}"),
            *("-device", "virtio-net-pci,netdev=net,romfile="),
        ]


def _make_root(suite: str, root: Path) -> None:
    masked = " ".join(_WITHOUT)
    run(
        [
            *("mmdebstrap", "--quiet", "--variant=apt", f"--include={','.join(_PACKAGES)}"),
            "--aptopt=Acquire::Check-Valid-Until false",
            '--customize-hook=chroot "$1" systemctl --quiet enable systemd-networkd.service',
            f'--customize-hook=chroot "$1" systemctl --quiet mask {masked}',
            *(suite, str(root), f"deb [signed-by={_KEYS}] {mirror()} {suite} main"),
        ],
        # Without INITRD=No the kernel's package makes an initrd that nobody uses.
        env={**os.environ, "INITRD": "No"},
        timeout_s=900,
    )


def _configure(root: Path, folder: Path) -> None:
    (root / "etc/machine-id").write_text(uuid.uuid4().hex + "\n")
    (root / "etc/hostname").write_text(f"{NAME}\n")
    (root / "etc/hosts").write_text(f"127.0.0.1 localhost\n{ADDRESS} {NAME}\n")
    (root / "etc/fstab").write_text("")
    (root / "etc/systemd/network/eth0.network").write_text(
        f"[Match]\nName=eth0\n[Network]\nAddress={ADDRESS}/24\nLinkLocalAddressing=no\n"
        "IPv6AcceptRA=no\n"
    )
    key = folder / "key"
    run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "lab", "-f", str(key)])
    known = root / "root/.ssh"
    known.mkdir(mode=0o700, exist_ok=True)
    shutil.copy(f"{key}.pub", known / "authorized_keys")
    (known / "authorized_keys").chmod(0o600)
    kind, public = (root / "etc/ssh/ssh_host_ed25519_key.pub").read_text().split()[:2]
    (folder / "known_hosts").write_text(f"{NAME} {kind} {public}\n")


def _make_initrd(root: Path, folder: Path) -> None:
    """The smallest that finds the disk: busybox, and the modules that are not in the kernel."""
    kernel = max(each.name for each in (root / "usr/lib/modules").iterdir())
    tree = folder / "initrd.tree"
    for name in ("bin", "modules", "proc", "sys", "dev", "root"):
        (tree / name).mkdir(parents=True)
    shutil.copy(root / "usr/bin/busybox", tree / "bin")
    order = [_add_module(file, tree / "modules") for file in _modules(root, kernel)]
    (tree / "modules/order").write_text("".join(f"{each}\n" for each in order))
    (tree / "init").write_text(_INIT)
    (tree / "init").chmod(0o755)
    packed = "find . | cpio --quiet -o -H newc > ../initrd"
    run(["sh", "-c", f"cd {shlex.quote(str(tree))} && {packed}"])
    shutil.rmtree(tree)
    shutil.copy(root / f"boot/vmlinuz-{kernel}", folder / "kernel")


def _modules(root: Path, kernel: str) -> list[Path]:
    wanted = ("virtio_pci", "virtio_blk", "ext4")
    found: dict[Path, None] = {}
    for module in wanted:
        argv = ["modprobe", "-d", str(root), "-S", kernel, "--show-depends", module]
        for line in run(argv).stdout.splitlines():
            if line.startswith("insmod "):
                found[Path(line.split()[1])] = None
    return list(found)


def _add_module(file: Path, folder: Path) -> str:
    """Copy it, expanded; returns its name."""
    unpack: dict[str, Sequence[str]] = {".xz": ("xz", "-dc"), ".zst": ("zstd", "-dqc")}
    if file.suffix not in unpack:
        shutil.copy(file, folder)
        return file.name
    with (folder / file.stem).open("wb") as plain:
        subprocess.run([*unpack[file.suffix], str(file)], stdout=plain, check=True)
    return file.stem
