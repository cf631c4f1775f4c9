"""What a server of the lab says of itself."""

from __future__ import annotations

import http.client
import re
import ssl

from lab.addresses import SERVER_REST_PORT
from lab.command import LabError
from lab.laboratory import Lab
from lab.server import Server
from tests.e2e.people import Person

_PAUSE = re.compile(r"^lattice_event_loop_longest_pause_seconds (\S+)$", re.MULTILINE)


def ask(lab: Lab, server: Server, person: Person, path: str) -> bytes:
    """The content of an answer of this server. Raises `LabError` for any but 200."""
    trust = ssl.create_default_context(cafile=str(lab.layout.certificates / "ca.crt"))
    headers = {"Authorization": f"Bearer {person.bearer['LATTICE_TOKEN']}"}
    line = http.client.HTTPSConnection(server.address, SERVER_REST_PORT, context=trust, timeout=60)
    with lab.enter_network():
        try:
            line.request("GET", path, headers=headers)
            answer = line.getresponse()
            content = answer.read()
        finally:
            line.close()
    if answer.status != http.client.OK:
        raise LabError(f"{server.name} answers {path} with {answer.status}: {content[:300]!r}")
    return content


def longest_pause_s(lab: Lab, server: Server, operator: Person) -> float:
    """Of its event loop, in the last one to two minutes."""
    found = _PAUSE.search(ask(lab, server, operator, "/metrics").decode())
    if found is None:
        raise LabError("/metrics has no longest pause")
    return float(found[1])
