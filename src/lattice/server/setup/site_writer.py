"""Writes the files of a server, each once: what is there stays, except a certificate that ends."""

from __future__ import annotations

import base64
import errno
import os
import pwd
import socket
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from lattice.adapters.pki.files import IdentityPaths, believed_keys, create_identity
from lattice.base.clock import Clock
from lattice.base.errors import ConfigurationError
from lattice.server.setup import site_files
from lattice.server.setup.answers import OWN, Answers
from lattice.server.setup.certificate import RENEW_BEFORE, TlsPair, ends, new_authority
from lattice.server.setup.certificate import new_certificate as certificate_for
from lattice.server.setup.site_paths import SitePaths
from lattice.server.setup.slurm_facts import SiteFacts


@dataclass(frozen=True, slots=True)
class Written:
    """What became of one file."""

    path: Path
    state: str
    """`made`, `renewed` or `there already`."""


class SiteWriter:
    """All files of one server, for its Unix user."""

    def __init__(self, answers: Answers, facts: SiteFacts, paths: SitePaths, clock: Clock) -> None:
        """Raises `ConfigurationError` if the account does not exist."""
        self._answers = answers
        self._facts = facts
        self._paths = paths
        self._clock = clock
        try:
            self._account = pwd.getpwnam(answers.account)
        except KeyError:
            raise ConfigurationError(
                f"There is no user {answers.account} on this machine.",
                hint="The package makes it; else: useradd --system lattice",
            ) from None

    def write(self) -> Iterator[Written]:
        """Each file in turn. Raises `ConfigurationError` for one that can't be written."""
        try:
            yield from self._all()
        except OSError as error:
            raise ConfigurationError(
                f"{error.filename}: {error.strerror}.", hint="Run it as root."
            ) from None

    def _all(self) -> Iterator[Written]:
        answers, facts, paths = self._answers, self._facts, self._paths
        yield self._identity()
        yield self._once(paths.grant_keys, self._public_keys, mode=0o644)
        if answers.tls_cert is None:
            yield from self._tls()
        if not answers.slurmrestd:
            # More threads than it has by itself.
            text = site_files.slurmrestd_defaults(facts, threads=16)
            yield self._once(paths.slurmrestd_defaults, text.encode, mode=0o644)
        if answers.slurm_tokens == OWN:
            text = site_files.slurmrestd_defaults(facts, threads=4)
            yield self._once(paths.judge_defaults, text.encode, mode=0o644)
        yield self._once(
            paths.server_defaults, site_files.server_defaults(answers).encode, mode=0o644
        )
        gate = site_files.gate_defaults(answers)
        yield self._once(paths.gate_defaults, gate.encode, mode=0o644)
        # People and secrets are named in it, by their files.
        config = site_files.server_config(answers, facts, paths)
        yield self._once(paths.server_config, config.encode, mode=0o640, group=True)
        client = site_files.client_config(answers, paths)
        yield self._once(paths.client_config, client.encode, mode=0o644)

    def _identity(self) -> Written:
        """The cluster's authority and the grant key, in the state folder."""
        paths = self._paths
        folder = paths.on_disk(paths.state)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._give(folder)
        files = IdentityPaths(
            *(paths.on_disk(paths.identity(name)) for name in ("ca_cert", "ca_key", "grant_key"))
        )
        is_new = create_identity(files, self._clock, name=self._facts.cluster)
        for each in files.all():
            self._give(each)
        return Written(paths.identity("ca_cert"), "made" if is_new else "there already")

    def _public_keys(self) -> bytes:
        keys = believed_keys([self._paths.on_disk(self._paths.identity("grant_key"))])
        return b"".join(base64.b64encode(each) + b"\n" for each in keys)

    def _tls(self) -> Iterator[Written]:
        paths, now = self._paths, self._clock.now()
        folder = paths.on_disk(paths.tls_cert.parent)
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        file = paths.on_disk(paths.tls_cert)
        state = "made"
        if file.exists():
            if ends(file.read_bytes()) > now + RENEW_BEFORE:
                yield Written(paths.tls_cert, "there already")
                return
            state = "renewed"
        authority = self._authority(now)
        here = (socket.gethostname(), "localhost", "127.0.0.1")
        made = certificate_for(authority, (*self._answers.hosts, *here), now)
        self._replace(paths.tls_key, made.key, 0o600)
        self._give(paths.on_disk(paths.tls_key))
        self._replace(paths.tls_cert, made.certificate, 0o644)
        yield Written(paths.tls_cert, state)

    def _authority(self, now: datetime) -> TlsPair:
        paths = self._paths
        certificate = paths.on_disk(paths.tls_authority)
        key = paths.on_disk(paths.tls_authority_key)
        if certificate.exists() and key.exists():
            return TlsPair(certificate.read_bytes(), key.read_bytes())
        if certificate.exists():
            raise ConfigurationError(
                f"{paths.tls_authority_key} is missing: without it the certificate of this server "
                "can't be renewed.",
                hint=f"Put it back from your backup. Or remove {paths.tls_authority} for a new "
                "authority, which people and nodes must then be given.",
            )
        made = new_authority(self._facts.cluster, now)
        self._replace(paths.tls_authority_key, made.key, 0o600)
        self._replace(paths.tls_authority, made.certificate, 0o644)
        return made

    def _once(
        self, path: Path, content: Callable[[], bytes], *, mode: int, group: bool = False
    ) -> Written:
        file = self._paths.on_disk(path)
        if file.exists() and _has_content(file):
            return Written(path, "there already")
        self._replace(path, content(), mode)
        if group:
            os.chown(file, -1, self._account.pw_gid)
        return Written(path, "made")

    def _replace(self, path: Path, content: bytes, mode: int) -> None:
        """Write the whole file or nothing, with its mode from the first byte on."""
        file = self._paths.on_disk(path)
        file.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        new = file.with_name(f".{file.name}.{os.getpid()}")
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
        with os.fdopen(os.open(new, flags, mode), "wb") as stream:
            os.fchmod(stream.fileno(), mode)
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        new.replace(file)

    def _give(self, file: Path) -> None:
        """Never through a link: the folder may be the account's own, which could put one there."""
        directory = os.O_DIRECTORY if file.is_dir() else os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            descriptor = os.open(file, os.O_RDONLY | directory)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise self._not_given(file) from None
            raise
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISDIR(found.st_mode) and (
                not stat.S_ISREG(found.st_mode) or found.st_nlink != 1
            ):
                raise self._not_given(file)
            os.fchown(descriptor, self._account.pw_uid, self._account.pw_gid)
        finally:
            os.close(descriptor)

    def _not_given(self, file: Path) -> ConfigurationError:
        return ConfigurationError(
            f"{file} is a link, or no plain file: {self._account.pw_name} does not get it.",
            hint="Find out who put it there. Restore the file from your backup, then go on.",
        )


def _has_content(file: Path) -> bool:
    """False for a file of comments alone, as packages bring it."""
    lines = (each.strip() for each in file.read_bytes().splitlines())
    return any(each and not each.startswith(b"#") for each in lines)
