"""A machine in software emulation: command lines, initrd, and a door into it.

KVM is not to be had everywhere. One CPU with Debian's cloud kernel boots in some seconds and runs
at a tenth of the speed. Its root is a file tree of this machine, read through virtiofs below a
tmpfs. Who starts the programs decides where: `lab.vm` in a lab, `lab.bare_machine`
without one.
"""

from __future__ import annotations

import base64
import shlex
import shutil
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from lab.command import LabError, run
from lab.vm_guest import INITRD_INIT, MODULES

_MEMORY_MB = 1024
# An old CPU is the quicker one to emulate: newer ones bring vector instructions that libraries
# then use, and the kernel's mitigations flush the emulator's caches at each system call. Without
# a random generator the guest waits 20 s for entropy.
_CPU = "Nehalem,+rdrand"
_KERNEL_WORDS = ("quiet", "panic=-1", "net.ifnames=0", "mitigations=off", "console=ttyS0")
_MODULE_ROOT = Path("/lib/modules")


def share_socket(folder: Path, tag: str) -> Path:
    """Of the program that serves a share; present when it is ready."""
    return folder / f"{tag}.sock"


def share_argv(folder: Path, tag: str, source: str, cache: str) -> list[str]:
    """Serves a file tree to the machine; with the cache `none` both sides may write."""
    options = ["-o", f"source={source}", "-o", f"cache={cache}", "-o", "sandbox=chroot"]
    return ["/usr/lib/qemu/virtiofsd", f"--socket-path={share_socket(folder, tag)}", *options]


def machine_argv(folder: Path, tap: str, tags: Sequence[str]) -> list[str]:
    """The machine. Its first program is `folder`/guest, its console `folder`/console.

    Without a tap it has no link.
    """
    words = [*_KERNEL_WORDS, f"guest={folder}/guest"]
    shares = [
        word
        for number, tag in enumerate(tags)
        for word in (
            *("-chardev", f"socket,id=share{number},path={share_socket(folder, tag)}"),
            *("-device", f"vhost-user-fs-pci,chardev=share{number},tag={tag}"),
        )
    ]
    memory = f"memory-backend-memfd,id=memory,size={_MEMORY_MB}M,share=on"
    # It is slow enough, and what asks it waits for some seconds only: its processor comes first.
    return [
        *("nice", "-n", "-10"),
        *("qemu-system-x86_64", "-accel", "tcg,thread=multi", "-cpu", _CPU, "-smp", "1"),
        *("-m", str(_MEMORY_MB), "-object", memory, "-numa", "node,memdev=memory"),
        *("-kernel", str(folder / "kernel"), "-initrd", str(folder / "initrd")),
        *("-append", " ".join(words), "-nographic", "-nodefaults", "-no-reboot"),
        *("-serial", f"file:{folder}/console"),
        *("-serial", f"unix:{folder}/door,server=on,wait=off"),
        *(("-netdev", f"tap,id=net,ifname={tap},script=no,downscript=no") if tap else ()),
        *(("-device", "virtio-net-pci,netdev=net,romfile=") if tap else ()),
        *shares,
    ]


def make_initrd(folder: Path) -> None:
    """Debian's cloud kernel, and an initrd with what it needs to mount the shares."""
    kernels = sorted(_MODULE_ROOT.glob("*-cloud-amd64"))
    if not kernels:
        raise LabError("a virtual machine needs Debian's linux-image-cloud-amd64")
    kernel, tree = kernels[-1], folder / "initrd.tree"
    shutil.rmtree(tree, ignore_errors=True)
    for name in ("bin", "modules", "proc", "sys", "dev", "lower", "upper", "root"):
        (tree / name).mkdir(parents=True)
    shutil.copy("/bin/busybox", tree / "bin")
    modules = _in_order(kernel)
    for file in modules:
        shutil.copy(file, tree / "modules")
    (tree / "modules" / "order").write_text("".join(f"{file.name}\n" for file in modules))
    (tree / "init").write_text(INITRD_INIT)
    (tree / "init").chmod(0o755)
    pack = "cd $0 && find . | cpio --quiet -o -H newc | zstd -q -1 >../initrd"
    run(["/bin/sh", "-c", pack, str(tree)])
    shutil.copy(f"/boot/vmlinuz-{kernel.name}", folder / "kernel")


def _in_order(kernel: Path) -> list[Path]:
    """The modules of the guest, each after those that it needs.

    Which need which differs from kernel to kernel; `modules.dep` lists the nearest first.
    """
    needs = {}
    for line in (kernel / "modules.dep").read_text().splitlines():
        file, _, others = line.partition(":")
        needs[Path(file).stem] = [kernel / each for each in (file, *others.split())]
    return list(dict.fromkeys(file for name in MODULES for file in reversed(needs[name])))


class Door:
    """Runs commands in the machine, through its second serial line."""

    def __init__(self, name: str, folder: Path) -> None:
        self._name = name
        self._file = folder / "door"

    def run(
        self,
        argv: Sequence[str],
        *,
        user: str | None = None,
        input: str | None = None,  # noqa: A002  as subprocess calls it
        timeout_s: float = 120.0,
        check: bool = True,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in the guest, as root or as an account; one at a time."""
        become = ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups"] if user else []
        script = f"cd /; {shlex.join([*become, *argv])}"
        if input is not None:
            script = f"base64 -d <<<{base64.b64encode(input.encode()).decode()} | {{ {script}; }}"
        status, out, err = self._asked(script, timeout_s)
        done = subprocess.CompletedProcess(list(argv), status, out, err)
        if check and status != 0:
            raise LabError(
                f"{shlex.join(argv)} on {self._name}: exit status {status}: {err or out}"
            )
        return done

    def _asked(self, script: str, timeout_s: float) -> tuple[int, str, str]:
        deadline = time.monotonic() + timeout_s
        with socket.socket(socket.AF_UNIX) as door:
            door.settimeout(timeout_s)
            door.connect(str(self._file))
            door.sendall(base64.b64encode(script.encode()) + b"\n")
            answer = b""
            while not answer.endswith(b"\n"):
                if time.monotonic() > deadline:
                    raise LabError(f"{self._name}: no end after {timeout_s:g} s: {script}")
                answer += door.recv(65536)
        status, out, err = answer.decode().split(" ")
        return int(status), _decode(out), _decode(err)


def _decode(word: str) -> str:
    # One "=" too many, so that an empty output is still a word.
    return base64.b64decode(word.strip()[:-1]).decode(errors="replace")
