"""VictoriaMetrics, one node, on the control namespace's loopback.

Started so that a test sees what it wrote: no latency offset, no result cache. Even so a series
that was asked for before it existed stays unknown for some seconds.
"""

from __future__ import annotations

from lab.addresses import VICTORIAMETRICS_PORT
from lab.files import owned_folder
from lab.layout import Layout
from lab.network import Network
from lab.process import Process
from lab.room import Room

_USER = "_victoria-metrics"

USERNAME, PASSWORD = "lattice", "lattice-metrics"
"""It asks for them: people's profiles run beside it, in the room of the submit gate."""


class VictoriaMetrics:
    """`process` is the handle."""

    name = "victoriametrics"

    def __init__(self, layout: Layout, room: Room, network: Network) -> None:
        self._folder = layout.state / "victoriametrics"
        self.endpoint = f"http://127.0.0.1:{VICTORIAMETRICS_PORT}"
        self.process = Process(
            "victoriametrics",
            [
                *("/usr/bin/victoria-metrics", f"-storageDataPath={self._folder}"),
                *(f"-httpListenAddr=127.0.0.1:{VICTORIAMETRICS_PORT}", "-retentionPeriod=7d"),
                *("-search.latencyOffset=0s", "-search.disableCache"),
                *("-envflag.enable", f"-httpAuth.username={USERNAME}"),
            ],
            layout,
            room,
            user=_USER,
            # Not among its arguments, which everybody can read.
            env={"httpAuth_password": PASSWORD},
            prepare=self._prepare,
            probe=lambda: network.answers(f"{self.endpoint}/health"),
        )

    def _prepare(self) -> None:
        owned_folder(self._folder, _USER)

    @property
    def processes(self) -> list[Process]:
        return [self.process]

    def up(self) -> None:
        self.process.up()

    def down(self) -> None:
        self.process.stop()
