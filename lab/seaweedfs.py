"""SeaweedFS as the S3 object store, on the control namespace's loopback.

One process plays master, volume, filer and S3 gateway. It takes 15 to 25 s to end on SIGTERM, so
it is killed; its stores are made for that.
"""

from __future__ import annotations

import json
import signal
import sys
import urllib.error
import urllib.request
from http import HTTPStatus
from pathlib import Path
from typing import Any
from zlib import crc32

from lab.addresses import (
    SEAWEED_FILER_PORT,
    SEAWEED_MASTER_PORT,
    SEAWEED_S3_PORT,
    SEAWEED_VOLUME_PORT,
)
from lab.files import give, owned_folder
from lab.layout import Layout
from lab.network import Network
from lab.process import Process
from lab.room import Room
from lab.s3_request import S3Answer, S3Keys, ask_s3
from lab.users import ENGINE_USER

BUCKET = "lattice"
AUDIT_BUCKET = "lattice-audit"
"""With object lock, for the shortest time there is: the lab removes its disk in any case."""
AUDIT_LOCK_DAYS = 1
SENSITIVE_BUCKET = "lattice-sensitive"
_BUCKETS = (BUCKET, AUDIT_BUCKET, SENSITIVE_BUCKET)
ACCESS_KEY = "LATTICEKEY"
SECRET_KEY = "lattice-secret-of-the-lab"
ADMIN_KEYS = S3Keys("ADMINKEY", "admin-secret-of-the-lab")
SERVER_KEYS = S3Keys(ACCESS_KEY, SECRET_KEY)
_LOCKED = (
    "<ObjectLockConfiguration><ObjectLockEnabled>Enabled</ObjectLockEnabled><Rule>"
    "<DefaultRetention><Mode>COMPLIANCE</Mode>"
    f"<Days>{AUDIT_LOCK_DAYS}</Days></DefaultRetention></Rule></ObjectLockConfiguration>"
).encode()
_GRPC_PORT = 14_000
_GRPC_PLACES = 1_500

_ALL = ["Read", "Write", "List", "Tagging"]
_IDENTITIES = {
    "identities": [
        {
            "name": "admin",
            "credentials": [{"accessKey": ADMIN_KEYS.access, "secretKey": ADMIN_KEYS.secret}],
            "actions": ["Admin", *_ALL],
        },
        {
            "name": "lattice",
            "credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}],
            "actions": [
                *(f"{action}:{bucket}" for bucket in _BUCKETS for action in _ALL),
                f"GetBucketObjectLockConfiguration:{AUDIT_BUCKET}",
            ],
        },
    ]
}
# Must not change over restarts: objects encrypted with the old one would answer 500.
_KEY_ENCRYPTION_KEY = "0123456789abcdef" * 4


class SeaweedFS:
    """`process` is the handle; the buckets exist once it is up."""

    name = "seaweedfs"

    def __init__(self, layout: Layout, room: Room, network: Network) -> None:
        self._folder = layout.state / "seaweedfs"
        self._name = layout.name
        self._network = network
        self.endpoint = f"http://127.0.0.1:{SEAWEED_S3_PORT}"
        self.process = Process(
            "seaweedfs",
            self._argv(),
            layout,
            room,
            user=ENGINE_USER,
            cwd=str(layout.state),
            env={"WEED_S3_SSE_KEK": _KEY_ENCRYPTION_KEY},
            prepare=self._prepare,
            probe=self._healthy,
            stop_signal=signal.SIGKILL,
        )

    def _argv(self) -> list[str]:
        folder, host = self._folder, "127.0.0.1"
        ports = {
            "master": SEAWEED_MASTER_PORT,
            "volume": SEAWEED_VOLUME_PORT,
            "filer": SEAWEED_FILER_PORT,
            "s3": SEAWEED_S3_PORT,
        }
        words = [f"-{part}.port={port}" for part, port in ports.items()]
        # Its parts speak through sockets in /tmp that are named by these ports alone: were they
        # the same in two labs, one would keep the other's objects.
        own = _GRPC_PORT + len(ports) * (crc32(self._name.encode()) % _GRPC_PLACES)
        words += [f"-{part}.port.grpc={own + number}" for number, part in enumerate(ports)]
        return [
            *(str(Path(sys.prefix) / "bin" / "weed"), "server", f"-dir={folder}"),
            *(f"-ip={host}", f"-ip.bind={host}", f"-s3.ip.bind={host}", "-filer", "-s3", *words),
            *("-s3.port.iceberg=0", "-s3.port.lance=0", f"-s3.config={folder}/s3.json"),
            *(f"-filer.localSocket={folder}/filer.sock", f"-s3.localSocket={folder}/s3.sock"),
            # A lone master that finds its old state waits this long for peers it doesn't have.
            "-master.electionTimeout=1s",
            *("-master.volumeSizeLimitMB=64", "-volume.max=50", "-volume.preStopSeconds=0"),
        ]

    def _prepare(self) -> None:
        owned_folder(self._folder, ENGINE_USER)
        identities = self._folder / "s3.json"
        identities.write_text(json.dumps(_IDENTITIES, indent=2))
        give(identities, ENGINE_USER)
        for socket in self._folder.glob("*.sock"):
            socket.unlink()

    def _healthy(self) -> bool:
        answers = self._network.answers(f"{self.endpoint}/healthz")
        return answers and self._has_locked_bucket() and all(map(self._has_bucket, _BUCKETS))

    def ask(self, keys: S3Keys, method: str, path: str, **more: Any) -> S3Answer:
        """A request to its S3, as `ask_s3`."""
        with self._network.entered():
            return ask_s3(self.endpoint, keys, method, path, **more)

    def _has_locked_bucket(self) -> bool:
        """Make the bucket of the audit log: only by S3 it gets its lock."""
        bucket = f"/{AUDIT_BUCKET}"
        locks = {"x-amz-bucket-object-lock-enabled": "true"}
        try:
            made = self.ask(ADMIN_KEYS, "PUT", bucket, headers=locks)
            if made.status not in {HTTPStatus.OK, HTTPStatus.CONFLICT}:
                return False
            locked = self.ask(ADMIN_KEYS, "PUT", bucket, query={"object-lock": ""}, body=_LOCKED)
        except OSError:
            return False
        return locked.status == HTTPStatus.OK

    def _has_bucket(self, bucket: str) -> bool:
        """Make the bucket: a folder of the filer, which needs no signed request.

        The filer answers 500 until it has found its master, some time after the gateway is well.
        """
        folder = f"http://127.0.0.1:{SEAWEED_FILER_PORT}/buckets/{bucket}/"
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        request = urllib.request.Request(folder, method="POST")
        try:
            with self._network.entered(), opener.open(request, timeout=10):
                return True
        except urllib.error.HTTPError as refusal:
            with refusal:
                return refusal.code == HTTPStatus.CONFLICT  # it is there already
        except OSError:
            return False

    @property
    def processes(self) -> list[Process]:
        return [self.process]

    def up(self) -> None:
        self.process.up()

    def down(self) -> None:
        self.process.kill()
