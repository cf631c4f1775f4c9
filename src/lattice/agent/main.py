"""`lattice-agent`: one on each node, as its own user. Parses flags and calls `run`."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from lattice import __version__
from lattice.agent.config import load_agent_config
from lattice.agent.enrol import enrol
from lattice.agent.fresh_start import FreshStart
from lattice.agent.log import configure_logging
from lattice.agent.run import run
from lattice.base.errors import LatticeError, status_of
from lattice.base.logsection import LogFormat
from lattice.base.malloc import return_freed_memory
from lattice.base.pauses import SLOW_BEAT_S, LoopPauses
from lattice.base.process import leave_no_core, reset_inherited_signals

_LARGE_BYTES = 1024 * 1024


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 78 for a bad configuration, 0 after a normal stop.

    1 if a required background loop failed.
    """
    options = vars(_parser().parse_args(arguments))
    file, check = options.pop("config"), options.pop("check_config")
    first, keys, owner = options.pop("enrol"), options.pop("grant_keys"), options.pop("owner")
    try:
        read = partial(load_agent_config, file, options, os.environ)
        settings = read()
        if check:
            print("configuration: ok")
            return 0
        log = settings.config.log
        configure_logging(log.level, console=log.format is LogFormat.CONSOLE)
        return_freed_memory(_LARGE_BYTES)
        reset_inherited_signals()
        if first:
            enrol(settings, keys, owner)
            return 0
        pauses, fresh = LoopPauses(), FreshStart()
        if fresh.overwrites:
            leave_no_core()
        fast_loop = partial(pauses.new_fast_loop, SLOW_BEAT_S)
        with asyncio.Runner(loop_factory=fast_loop) as runner:
            runner.run(run(settings, pauses, read, fresh))
        fresh.execute()
    except LatticeError as error:
        lines = [error.message, *getattr(error, "problems", ())]
        lines += [f"Hint: {error.hint}"] if error.hint else []
        sys.stderr.write("\n".join(lines) + "\n")
        return status_of(error).exit
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lattice-agent", description="Links this node to Lattice. Opens no port."
    )
    add = parser.add_argument
    add("--config", type=Path, help="default: /etc/lattice/agent.yaml, if it is there")
    add("--check-config", action="store_true", help="name every problem, then exit")
    add("--node-id", help="the node's name in Slurm; default: the host name")
    add("--quorum-endpoint", action="append", metavar="URL", help="a server to enrol at")
    add("--replicas", action="append", metavar="HOST:PORT", help="a server to link to")
    add("--enrol", action="store_true", help="get the first certificate, then exit; run as root")
    add("--grant-keys", type=Path, metavar="FILE", help="with --enrol: write the helper's keys")
    add("--owner", default="", metavar="USER", help="with --enrol: whom the state folder is for")
    add("--state-dir", type=Path, help="where the own certificate is kept")
    add("--enrol-token-file", type=Path, help="a one-time token of `lattice admin enrol`")
    for name in ("cert", "key", "ca"):
        add(f"--bootstrap-{name}", type=Path)
    for name in ("gpu-count", "cpu-cores", "memory-gb"):
        add(f"--{name}", type=int, help="what the node should have; a difference is a warning")
    add("--gpu-type", help="likewise")
    add("--version", action="version", version=f"lattice-agent {__version__}")
    return parser


if __name__ == "__main__":
    sys.exit(main())
