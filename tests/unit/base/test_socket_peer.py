"""The account at the other end of a connection, as the kernel names it."""

from __future__ import annotations

import os
import socket

import pytest

from lattice.base.socket_peer import socket_peer

OTHER = 54321


@pytest.mark.parametrize(
    ("family", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")]
)
def test_the_owner_of_a_loopback_connection(family: int, address: str) -> None:
    with socket.socket(family) as listener:
        listener.bind((address, 0))
        listener.listen()
        with socket.create_connection(listener.getsockname()[:2]):
            taken, _ = listener.accept()
            with taken:
                assert socket_peer(taken) == f"uid {os.getuid()}"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another")
def test_another_account_is_named() -> None:
    with socket.socket() as listener, socket.socket() as client:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        # Whose a socket is shows its file, as after `setuid` in the process that opens it.
        os.fchown(client.fileno(), OTHER, OTHER)
        client.connect(listener.getsockname())
        taken, _ = listener.accept()
        with taken:
            assert socket_peer(taken) == f"uid {OTHER}"


def test_a_unix_socket_names_its_peer() -> None:
    one, other = socket.socketpair()
    with one, other:
        assert socket_peer(one) == f"uid {os.getuid()}"


def test_an_address_where_the_kernel_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lattice.base.socket_peer._SOCK_DIAG", 31)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        with socket.create_connection(listener.getsockname()):
            taken, _ = listener.accept()
            with taken:
                assert socket_peer(taken) == "127.0.0.1"
