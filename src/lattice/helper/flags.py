"""The flags of `lattice-helper`: all of its configuration."""

from __future__ import annotations

import argparse
from pathlib import Path

from lattice import __version__
from lattice.domain.administration import VerbGroup
from lattice.domain.grant import GATE
from lattice.domain.privileged import HelperRole


def helper_flags() -> argparse.ArgumentParser:
    """The parser of its command line."""
    parser = argparse.ArgumentParser(
        prog="lattice-helper",
        description="The privileged part of Lattice: narrow verbs on a unix socket, as root.",
    )
    parser.add_argument(
        "--role", required=True, choices=[role.value for role in HelperRole],
        help="`node` beside an agent, `gate` beside a server",
    )  # fmt: skip
    parser.add_argument("--socket", required=True, type=Path, help="where to listen")
    parser.add_argument(
        "--allow-user", required=True, metavar="NAME", help="the one user who may ask"
    )
    parser.add_argument(
        "--place", default=GATE, metavar="NAME",
        help="the node's name, as grants name it; `gate` beside a server",
    )  # fmt: skip
    parser.add_argument(
        "--grant-keys", required=True, type=Path, metavar="FILE",
        help="public keys of the servers, one in base64 a line; read again when it changes",
    )  # fmt: skip
    parser.add_argument(
        "--notes", type=Path, metavar="DIR",
        help="beside an agent: where files of running jobs are noted; not set: `notes` beside the "
        "socket",
    )  # fmt: skip
    parser.add_argument(
        "--sessions", type=Path, metavar="DIR",
        help="beside an agent: where terminals are found again; not set: `sessions` beside the "
        "socket",
    )  # fmt: skip
    parser.add_argument(
        "--image-keys", type=Path, metavar="FILE",
        help="beside an agent: public keys that sign images for sensitive work, one in base64 a "
        "line; not set: no terminals in sensitive work",
    )  # fmt: skip
    parser.add_argument(
        "--no-tools", action="store_true", help="beside an agent: mount no image for a terminal"
    )
    parser.add_argument(
        "--latency-object", type=Path, metavar="FILE",
        help="beside an agent: the eBPF program that times reads and writes; not set: the one that "
        "was built beside this program",
    )  # fmt: skip
    parser.add_argument(
        "--no-latency", action="store_true",
        help="beside an agent: put no eBPF program into the kernel",
    )  # fmt: skip
    parser.add_argument(
        "--py-spy", type=Path, metavar="FILE",
        help="beside an agent: the program that reads stacks of Python; not set: the one that is "
        "installed beside this program or in the node's usual places",
    )  # fmt: skip
    parser.add_argument("--hang-up-s", type=float, default=60.0, help=argparse.SUPPRESS)
    parser.add_argument("--kill-s", type=float, default=30.0, help=argparse.SUPPRESS)
    parser.add_argument("--linger-s", type=float, default=60.0, help=argparse.SUPPRESS)
    _add_gate_flags(parser)
    _add_limits(parser)
    parser.add_argument("--version", action="version", version=f"lattice-helper {__version__}")
    return parser


def _add_limits(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--timeout-s", type=float, default=30.0, help="how long a program may take")
    parser.add_argument(
        "--most-at-once",
        type=int,
        default=8,
        help="questions answered together; cancelling has 4 more",
    )


def _add_gate_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--slurm-bin", type=Path, metavar="DIR", help="folder of Slurm's programs")
    parser.add_argument("--slurm-conf", type=Path, metavar="FILE", help="not set: Slurm's own")
    parser.add_argument(
        "--refuse-user", action="append", default=[], metavar="NAME",
        help="an account that is never acted for, besides root, SlurmUser and --allow-user",
    )  # fmt: skip
    parser.add_argument(
        "--allow", action="append", default=[], choices=[group.value for group in VerbGroup],
        help="beside a server: what administrators may change in Slurm through this gate; may be "
        "given several times; not given: nothing",
    )  # fmt: skip
    parser.add_argument(
        "--administer-as", default="", metavar="NAME",
        help="beside a server: the account that makes these changes, with the level Administrator "
        "in Slurm; not set: SlurmUser",
    )  # fmt: skip
