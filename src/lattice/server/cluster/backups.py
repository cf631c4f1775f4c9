"""What a server needs for backups of its state: their place, their key, and how to restore one."""

from __future__ import annotations

import shlex
from collections.abc import Awaitable, Callable
from pathlib import Path

from lattice import __version__
from lattice.adapters.objects.folder import FolderObjectStore
from lattice.adapters.pki.files import believed_keys
from lattice.base.clock import Clock
from lattice.base.signatures import SigningKey
from lattice.domain.backup import ROOT, BackupSigner
from lattice.domain.objects import ObjectStore
from lattice.features.state.service.backup_store import BackupStore
from lattice.features.state.service.backups import BackupTerms, RestoreMeans
from lattice.features.state.service.quorum import StateKind
from lattice.server.cluster.state import AgreedState
from lattice.server.config.sections import ServerConfig

ORDERED = "restore.next"
"""In the folder of a single server: the name of the backup to restore at the next start."""


def state_kind(config: ServerConfig, agreed: AgreedState) -> StateKind:
    """What holds the state of this server."""
    if agreed.members is not None:
        return StateKind(store="etcd", members=agreed.members)
    return StateKind(store="temporary" if config.single is None else "single")


def backup_signer(config: ServerConfig) -> BackupSigner | None:
    """The signer of manifests; None without an identity."""
    identity = config.identity
    if identity.grant_key is None:
        return None
    return BackupSigner(
        SigningKey.load(identity.grant_key), believed_keys(identity.previous_grant_keys)
    )


def open_backup_store(
    config: ServerConfig, objects: ObjectStore | None, clock: Clock
) -> BackupStore | None:
    """The store of backups; None without a place for them, or without a key."""
    signer, folder = backup_signer(config), config.backup.folder
    if folder is not None:
        objects, location = FolderObjectStore(folder), str(folder)
    elif config.objects.url is not None:
        location = str(config.objects.url).rstrip("/")
    else:
        location = str((config.single or Path()) / "objects")
    if signer is None or objects is None:
        return None
    return BackupStore(objects, signer, clock, location=f"{location}/{ROOT}")


def backup_terms(config: ServerConfig) -> BackupTerms:
    return BackupTerms(every_h=config.backup.every_h, keep=config.backup.keep, version=__version__)


def restore_means(config: ServerConfig) -> RestoreMeans:
    """A single server restores at its next start; with etcd people take the steps."""
    if config.single is None:
        return RestoreMeans(order=None, steps=lambda name: etcd_steps(config, name))
    folder = config.single
    return RestoreMeans(order=_order_in(folder), steps=lambda _name: single_steps(folder))


def _order_in(folder: Path) -> Callable[[str], Awaitable[None]]:
    async def order(name: str) -> None:
        unfinished = folder / f"{ORDERED}.unfinished"
        unfinished.write_text(f"{name}\n", encoding="ascii")
        unfinished.replace(folder / ORDERED)

    return order


def single_steps(folder: Path) -> tuple[str, ...]:
    """What a person does for a single server."""
    return (
        "Restart it:\nsystemctl restart lattice-server",
        f"To keep the state as it is, remove the order before:\nrm {folder / ORDERED}",
    )


def etcd_steps(config: ServerConfig, name: str) -> tuple[str, ...]:
    """What people do for etcd: empty it by its own tools, then let one server write the records."""
    quorum = config.quorum
    etcdctl = ["etcdctl", f"--endpoints={','.join(quorum.endpoints)}"]
    for flag, file in (("cacert", quorum.ca), ("cert", quorum.cert), ("key", quorum.key)):
        etcdctl += [f"--{flag}={file}"] if file is not None else []
    tool = " ".join(map(shlex.quote, etcdctl))
    members = ", ".join(each.partition("://")[2] for each in quorum.endpoints)
    stop = "On every server:\nsystemctl stop lattice-server"
    lost = (
        f"If members of etcd lost their data, on each member ({members}):\n"
        "systemctl stop etcd\n"
        "mv /var/lib/etcd /var/lib/etcd.lost\n"
        "Then start all of them as at the first time, with --initial-cluster-state new:\n"
        "systemctl start etcd"
    )
    well = (
        "If etcd is well and its state is to be replaced, copy it and empty it, on one server:\n"
        f"ETCDCTL_API=3 {tool} snapshot save before-restore.db\n"
        f"ETCDCTL_API=3 {tool} del --prefix /lattice/"
    )
    config_file = shlex.quote(str(config.file))
    write = f"On one server, as its user:\nlattice-server restore --config {config_file} {name}"
    return stop, lost, well, write, "On every server:\nsystemctl start lattice-server"
