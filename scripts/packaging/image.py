"""An image of command line and server, written in the layout of the Open Container Initiative.

    scripts/image [--packages DIR] [--out DIR]

Its root is made of Debian's packages and of ours, so no registry is asked and no engine is needed:
`podman load -i lattice-image-VERSION.tar` reads the result.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import os
import sys
import tarfile
import tempfile
import time
from io import BytesIO
from pathlib import Path

from lab.slurm_root import KEYS, mirror
from scripts.packaging.command import MACHINES, ROOT, BuildError, commit_time, run, version

_SUITE = "trixie"
_INCLUDED = ("ca-certificates", "passwd", "libstdc++6", "tzdata")
_PACKAGES = ("lattice-python", "lattice", "lattice-server")
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"


def image(packages: Path, out: Path) -> Path:
    """Make the archive from built packages."""
    made = out / f"lattice-image-{version()}.tar"
    with tempfile.TemporaryDirectory(prefix="lattice-image-") as folder:
        root = Path(folder) / "root.tar"
        _make_root(packages, root)
        _write(root, made)
    return made


def _make_root(packages: Path, root: Path) -> None:
    debian = MACHINES[os.uname().machine]
    files = [next(packages.glob(f"{name}_*_{debian}.deb")) for name in _PACKAGES]
    copied = " ".join(str(each) for each in files)
    inside = " ".join(f"/tmp/{each.name}" for each in files)
    run(
        *("mmdebstrap", "--quiet", "--variant=minbase", f"--include={','.join(_INCLUDED)}"),
        # Nothing that a container has no use for.
        *("--dpkgopt=path-exclude=/usr/share/man/*", "--dpkgopt=path-exclude=/usr/share/locale/*"),
        f'--customize-hook=cp {copied} "$1/tmp"',
        f'--customize-hook=chroot "$1" dpkg -i {inside} >/dev/null',
        '--customize-hook=rm -rf "$1"/tmp/* "$1"/var/lib/apt/lists/* "$1"/var/cache/apt/*',
        '--customize-hook=rm -f "$1"/etc/apt/sources.list "$1"/etc/resolv.conf "$1"/etc/hostname',
        # A new volume takes its owner from the folder that it hides.
        '--customize-hook=chroot "$1" install -d -o lattice -g lattice -m 0700 /var/lib/lattice',
        *(_SUITE, root, f"deb [signed-by={KEYS}] {mirror()} {_SUITE} main"),
        env={**os.environ, "SOURCE_DATE_EPOCH": commit_time()},
    )


def _write(root: Path, made: Path) -> None:
    plain = root.read_bytes()
    layer = gzip.compress(plain, 6, mtime=0)
    date = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(int(commit_time())))
    config = {
        "created": date,
        "architecture": MACHINES[os.uname().machine],
        "os": "linux",
        "config": {
            "User": "lattice",
            "Env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LATTICE_LOG_FORMAT=json"],
            "Cmd": ["lattice-server"],
            "WorkingDir": "/var/lib/lattice",
            "Labels": {
                "org.opencontainers.image.title": "lattice",
                "org.opencontainers.image.version": version(),
                "org.opencontainers.image.licenses": "Apache-2.0",
            },
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{_digest(plain)}"]},
    }
    shown = json.dumps(config).encode()
    manifest = json.dumps(
        {
            "schemaVersion": 2,
            "mediaType": _MANIFEST,
            "config": _described(_CONFIG, shown),
            "layers": [_described(_LAYER, layer)],
        }
    ).encode()
    name = {"org.opencontainers.image.ref.name": f"localhost/lattice:{version()}"}
    listed = {**_described(_MANIFEST, manifest), "annotations": name}
    index = json.dumps({"schemaVersion": 2, "manifests": [listed]}).encode()
    with tarfile.open(made, "w") as archive:
        _add(archive, "oci-layout", b'{"imageLayoutVersion": "1.0.0"}')
        _add(archive, "index.json", index)
        for blob in (manifest, shown, layer):
            _add(archive, f"blobs/sha256/{_digest(blob)}", blob)


def _described(kind: str, blob: bytes) -> dict[str, object]:
    return {"mediaType": kind, "digest": f"sha256:{_digest(blob)}", "size": len(blob)}


def _digest(blob: bytes) -> str:
    return hashlib.sha256(blob).hexdigest()


def _add(archive: tarfile.TarFile, name: str, blob: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(blob)
    archive.addfile(entry, BytesIO(blob))


def main() -> int:
    """Make it from the packages of `scripts/package`."""
    parser = argparse.ArgumentParser(prog="scripts/image", description="Make the image.")
    parser.add_argument("--packages", type=Path, default=ROOT / "dist", metavar="DIR")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", metavar="DIR")
    options = parser.parse_args()
    try:
        print(image(options.packages.resolve(), options.out.resolve()))
    except StopIteration:
        sys.stderr.write(f"Can't make it: {options.packages} lacks debs; run scripts/package\n")
        return 1
    except BuildError as error:
        sys.stderr.write(f"Can't make it: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
