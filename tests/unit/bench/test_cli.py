"""A person of the CLI bench whose configuration does not name the server's authority."""

from __future__ import annotations

import socket
import ssl
import subprocess
import sys
import threading
from pathlib import Path

import trustme

from bench.cli import BARE, GOALS, STATUS_WITHOUT_CA, _figures, without_ca

_DIAL = """
import socket, ssl, sys
context = ssl.create_default_context()
context.wrap_socket(socket.create_connection(("127.0.0.1", int(sys.argv[1]))),
                    server_hostname="127.0.0.1").close()
"""


def test_the_servers_authority_is_found_in_the_folder_of_the_system(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    environment = {
        "LATTICE_API_URL": "https://127.0.0.1:1,https://127.0.0.1:2",
        "LATTICE_CA": str(tmp_path / "ca.pem"),
        "SSL_CERT_FILE": "/nowhere",
        "HOME": str(tmp_path),
    }
    folder = tmp_path / "system"
    folder.mkdir()
    found = without_ca(environment, folder)
    assert not {"LATTICE_CA", "SSL_CERT_FILE"} & found.keys()
    assert "ca:" not in Path(found["LATTICE_CONFIG"]).read_text()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        def accept() -> None:
            with context.wrap_socket(listener.accept()[0], server_side=True) as accepted:
                accepted.recv(1)

        answering = threading.Thread(target=accept)
        answering.start()
        done = subprocess.run(
            [sys.executable, "-c", _DIAL, str(port)], env=found, capture_output=True, check=False
        )
        answering.join()
    assert done.returncode == 0, done.stderr


def test_each_command_is_measured_in_starts_of_python() -> None:
    times = {BARE: [20.0] * 7} | {name: [130.0] * 7 for name in GOALS}
    bare, *judged = _figures(times)
    assert (bare.name, bare.goal) == (BARE, None)
    assert {each.name: each.ratio for each in judged} == dict.fromkeys(GOALS, 6.5)
    assert [each.ok for each in judged if each.name == STATUS_WITHOUT_CA] == [False]
