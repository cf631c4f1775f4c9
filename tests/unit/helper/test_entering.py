"""The way from the helper to a program of the owner's, walked as root on the real kernel.

No namespaces and no control groups: what is left behind on the way is the same without them.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from lattice.helper.job_entry import EntryMethod, Owner, Wish, enter
from lattice.helper.privilege import Kernel, become
from lattice.helper.target import ProbeTarget

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another")

_SYSTEM_CALLS = {"x86_64": (248, 250), "aarch64": (217, 219)}
"""`add_key` and `keyctl`."""
_KEYS = Path("/proc/keys")
_KEY = "lattice-test-key"
_SESSION_KEYRING = -3
_JOIN_SESSION_KEYRING = 1
_SHOWN = ("exe", "fd/0", "environ")


def _target() -> ProbeTarget:
    """A process that has the view of this one."""
    facts = SimpleNamespace(
        unchanged=lambda: True, join=lambda _: None, cgroup_namespace=-1, directory=-1,
        environment={}, limits=(), umask=0o077,
    )  # fmt: skip
    return cast("ProbeTarget", facts)


def _enter(kernel: Kernel, stdout: int, *argv: str) -> None:
    nothing = os.open("/dev/null", os.O_RDWR)
    way = EntryMethod(
        kernel=kernel, target=_target(), owner=Owner.of(pwd.getpwnam("nobody")), guests=()
    )
    wish = Wish(session="1" * 32, argv=argv, terminal="", streams=(nothing, stdout, nothing))
    enter(way, wish, os.open("/dev/null", os.O_WRONLY))


@contextmanager
def _child(act: Callable[[int], None]) -> Iterator[tuple[int, int]]:
    """A process that does this with the end of a pipe; its pid, and the other end."""
    told, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(told)
            act(tell)
        finally:
            os._exit(1)
    os.close(tell)
    try:
        yield pid, told
    finally:
        os.close(told)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _all_of(told: int) -> str:
    found = b""
    while part := os.read(told, 65536):
        found += part
    return found.decode()


class _KeepsKeys(Kernel):
    def new_keyring(self) -> None:
        pass


def _hold_a_key() -> bool:
    if os.uname().machine not in _SYSTEM_CALLS:
        return False
    add_key, keyctl = _SYSTEM_CALLS[os.uname().machine]
    call = ctypes.CDLL(None, use_errno=True).syscall
    call(keyctl, _JOIN_SESSION_KEYRING, None)
    return int(call(add_key, b"user", _KEY.encode(), b"secret", 6, _SESSION_KEYRING)) > 0


@pytest.mark.spec("ATTACH-7")
@pytest.mark.threat("keyring")
def test_what_is_entered_finds_no_key_of_root_s() -> None:
    found = {}
    for kernel in (_KeepsKeys(), Kernel()):

        def act(tell: int, kernel: Kernel = kernel) -> None:
            if _hold_a_key():
                _enter(kernel, tell, "cat", str(_KEYS))

        with _child(act) as (_, told):
            found[type(kernel)] = _KEY in _all_of(told)
    if not found[_KeepsKeys]:
        pytest.skip("this kernel has no keys, or shows none")
    assert not found[Kernel]


@pytest.mark.spec("ATTACH-7")
@pytest.mark.threat("leaked-descriptor")
def test_what_is_entered_has_three_descriptors() -> None:
    def act(tell: int) -> None:
        for _ in range(3):
            os.set_inheritable(os.open("/etc/shadow", os.O_RDONLY), True)
        _enter(Kernel(), tell, "sh", "-c", "ls /proc/$$/fd")

    with _child(act) as (_, told):
        assert _all_of(told).split() == ["0", "1", "2"]


class _Waits(Kernel):
    """Stays where it is the owner already and still runs code of the helper's."""

    def __init__(self, tell: int) -> None:
        super().__init__()
        self._tell = tell

    def new_keyring(self) -> None:
        os.write(self._tell, b"x")
        signal.pause()


@pytest.mark.spec("ATTACH-7")
@pytest.mark.threat("watched-entry")
@pytest.mark.parametrize("executes", [False, True])
def test_who_enters_is_hidden_from_the_owner_until_his_own_program_runs(executes: bool) -> None:
    def act(tell: int) -> None:
        kernel = Kernel()
        kernel.hide_memory()  # as the helper does before it serves
        _enter(kernel if executes else _Waits(tell), tell, "sh", "-c", "echo x; exec sleep 300")

    with _child(act) as (pid, told):
        assert os.read(told, 1) == b"x"
        with _child(lambda tell: _tell_what_is_shown(tell, pid)) as (_, seen):
            assert _all_of(seen).split() == (list(_SHOWN) if executes else [])


def _tell_what_is_shown(tell: int, pid: int) -> None:
    """To another process of the same user's."""
    become(Kernel(), pwd.getpwnam("nobody"))
    for name in _SHOWN:
        path = Path(f"/proc/{pid}/{name}")
        try:
            _ = path.read_bytes() if name == "environ" else path.readlink()
        except PermissionError:
            continue
        os.write(tell, f"{name} ".encode())
