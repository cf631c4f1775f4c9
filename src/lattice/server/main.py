"""`lattice-server`: reads its arguments and its configuration, then serves."""

from __future__ import annotations

import argparse
import asyncio
import os
import pwd
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from lattice import __version__
from lattice.base.clock import SystemClock
from lattice.base.errors import ConfigurationError, LatticeError, status_of
from lattice.base.logs import configure_logging
from lattice.base.logsection import LogFormat
from lattice.base.malloc import NotOverwriting, overwrite_freed_memory
from lattice.base.pauses import LoopPauses
from lattice.base.process import leave_no_core, reset_inherited_signals
from lattice.server.cluster.agents import as_single_server, begin_identity, succeed_identity
from lattice.server.cluster.state import bootstrap_state
from lattice.server.config.load import check_server_config, load_server_config
from lattice.server.config.sections import ServerConfig
from lattice.server.config.sensitive_rules import serves_sensitive_work
from lattice.server.recovery.move import move
from lattice.server.recovery.restore import restore
from lattice.server.serve import serve
from lattice.server.setup.command import setup

_PROGRAMS: Mapping[str, Callable[[Sequence[str]], int]] = {
    "setup": setup,
    "restore": restore,
    "move": move,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 78 for an invalid configuration, 0 after an orderly stop.

    1 if a background loop failed that the server needs. Other errors have the code of `STATUS`.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] and given[0] in _PROGRAMS:
        return _run(_PROGRAMS[given[0]], given[1:])
    options = _parser().parse_args(given)
    if options.check_config:
        return _check(options.config)
    reset_inherited_signals()
    try:
        if options.bootstrap:
            begin_identity(options.config, os.environ)
        config = _load(options.config, options.single)
        if not options.next_identity and not options.bootstrap:
            _keep_nothing(config)
        log = configure_logging(config.log.level, console=config.log.format is LogFormat.CONSOLE)
        for warning in config.warnings:
            log.warning("configuration", warning=warning)
        if options.next_identity:
            made = succeed_identity(config, options.next_identity)
            log.info("next identity made", files=[str(each) for each in made.all()])
        elif options.bootstrap:
            asyncio.run(bootstrap_state(config.quorum, SystemClock(), log))
        else:
            pauses = LoopPauses()
            with asyncio.Runner(loop_factory=pauses.new_fast_loop) as runner:
                runner.run(
                    serve(config, log, pauses, partial(_load, options.config, options.single))
                )
    except LatticeError as error:
        _complain(error)
        return status_of(error).exit
    return 0


def _load(file: Path, single: Path | None) -> ServerConfig:
    config = replace(load_server_config(file, os.environ), file=file.absolute())
    return as_single_server(config, single) if single else config


def _keep_nothing(config: ServerConfig) -> None:
    """Leave no text of sensitive work in memory after its use, and none in a core file."""
    if not serves_sensitive_work(config):
        return
    try:
        overwrite_freed_memory()
    except NotOverwriting as error:
        raise ConfigurationError(
            f"A sensitive vCluster can't be served: {error}.",
            hint="Run lattice-server with glibc, and without python's -I and -E.",
        ) from None
    leave_no_core()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lattice-server",
        description="Serves Lattice: REST for people, gRPC for services and agents.",
        epilog="`lattice-server setup` writes what a new server needs, `lattice-server restore` "
        "restores the state from a backup, and `lattice-server move` moves a site from --single to "
        "etcd; see the --help of each.",
    )
    parser.add_argument("--config", type=Path, default=Path("/etc/lattice/server.yaml"))
    parser.add_argument(
        "--check-config", action="store_true", help="name every problem of the file, then exit"
    )
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument(
        "--bootstrap",
        action="store_true",
        help="begin a new cluster's state in etcd, once, then exit",
    )
    kind.add_argument(
        "--single",
        type=Path,
        metavar="DIR",
        help="one server without etcd: the state is a database in DIR; no high availability",
    )
    kind.add_argument(
        "--next-identity",
        type=Path,
        metavar="DIR",
        help="make an authority and a grant key to follow the configured ones, then exit",
    )
    parser.add_argument("--version", action="version", version=f"lattice-server {__version__}")
    return parser


def _run(program: Callable[[Sequence[str]], int], arguments: Sequence[str]) -> int:
    try:
        return program(arguments)
    except PermissionError as error:
        refused = ConfigurationError(
            f"{error.filename or 'A file'}: permission denied.",
            hint=f"This ran as {_account()}. Run it as root, or let that account have the file.",
        )
        _complain(refused)
        return status_of(refused).exit
    except LatticeError as error:
        _complain(error)
        return status_of(error).exit


def _account() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return f"the account {os.geteuid()}"


def _check(path: Path) -> int:
    checked = check_server_config(path, os.environ)
    print("\n".join(checked.lines()))
    return 0 if checked.config is not None else status_of(ConfigurationError("")).exit


def _complain(error: LatticeError) -> None:
    lines = [error.message, *getattr(error, "problems", ())]
    if error.hint:
        lines.append(f"Hint: {error.hint}")
    sys.stderr.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    sys.exit(main())
