"""Who is at the other end of a socket: an account of this machine, or an address.

A unix socket names the account of its peer. For a connection within this machine the kernel is
asked for the owner of the other end (`sock_diag(7)`). Any account may ask that.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import struct

_SOCK_DIAG = 4
_BY_FAMILY, _REQUEST = 20, 1
_ERROR = 2
_HEADER = struct.Struct("=IHHII")
_NO_COOKIE = b"\xff" * 8
_OWNER = 16 + 4 + 48 + 12
"""Where the owner is: after the header, four bytes, the ends, and three counters."""
_WAIT_S = 0.1


def socket_peer(connection: socket.socket) -> str:
    """Return `uid N` or an address; empty if neither is known."""
    try:
        if connection.family == socket.AF_UNIX:
            raw = connection.getsockopt(
                socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")
            )
            return f"uid {struct.unpack('3i', raw)[1]}"
        peer, own = connection.getpeername(), connection.getsockname()
    except OSError:
        return ""
    if not ipaddress.ip_address(peer[0]).is_loopback:
        return str(peer[0])
    try:
        return f"uid {_owner(connection.family, peer, own)}"
    except (OSError, struct.error):
        return str(peer[0])


def _owner(family: int, peer: tuple[str, int], own: tuple[str, int]) -> int:
    """The user id that owns the end at `peer`. Raises `OSError` and `struct.error`."""
    ends = struct.pack("!HH", peer[1], own[1])
    ends += b"".join(socket.inet_pton(family, each[0]).ljust(16, b"\0") for each in (peer, own))
    ends += struct.pack("=I", 0) + _NO_COOKIE
    asked = struct.pack("=BBBBI", family, socket.IPPROTO_TCP, 0, 0, 0xFFFFFFFF) + ends
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as kernel:
        kernel.settimeout(_WAIT_S)
        kernel.sendto(
            _HEADER.pack(_HEADER.size + len(asked), _BY_FAMILY, _REQUEST, 1, 0) + asked, (0, 0)
        )
        answer = kernel.recv(4096)
    kind = _HEADER.unpack_from(answer)[1]
    if kind != _BY_FAMILY:
        code = -struct.unpack_from("=i", answer, _HEADER.size)[0] if kind == _ERROR else 0
        raise OSError(code, os.strerror(code))
    return int(struct.unpack_from("=I", answer, _OWNER)[0])
