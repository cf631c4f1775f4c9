"""The lab for a person: `python -m lab up`, `down`, `status`, `shell alice`, and the like."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import NoReturn

from lab.command import LabError
from lab.laboratory import PARTS, Lab
from lab.layout import DEFAULT_NAME
from lab.login import can_log_in, log_in
from lab.record_environments import record_environments
from lab.record_slurm import record
from lab.sensitive import VCLUSTER, serve_sensitive_work
from lab.server import EXECUTABLE
from lab.session import API_URL
from lab.signed_image import mount_image, sign
from lab.slurm_config import AUTHENTICATIONS
from lab.slurm_root import RELEASES, default_authentication, default_release, slurm_root
from lab.users import PEOPLE

_SETTINGS = r"""
PS1='\u@\h:\w\$ '
unset HISTFILE
alias ls='ls --color=auto'
"""


def main(arguments: list[str] | None = None) -> int:
    asked = _parser().parse_args(arguments)
    if os.geteuid() != 0:
        print("lab: namespaces and accounts need root: run it with sudo", file=sys.stderr)
        return 1
    try:
        result: int = asked.act(asked)
    except LabError as problem:
        print(f"lab: {problem}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("lab: interrupted; `down` or the next `up` clears the rest", file=sys.stderr)
        return 130
    return result


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="lab", description=__doc__)
    parser.add_argument("--name", default=DEFAULT_NAME, help="which lab; several can be up at once")
    verbs = parser.add_subparsers(required=True, metavar="COMMAND")
    names = ", ".join(person.name for person in PEOPLE)

    up = verbs.add_parser("up", help="start everything, after clearing what a killed lab left")
    up.add_argument("--parts", default=",".join(PARTS), help=f"some of {','.join(PARTS)}")
    up.add_argument(
        "--servers", type=int, choices=(1, 2), default=2, help="lattice-server replicas"
    )
    up.add_argument("--slurm", choices=RELEASES, default=default_release(), help="release")
    up.add_argument("--auth", choices=AUTHENTICATIONS, default=default_authentication())
    up.add_argument("--vm", action="store_true", help="with the VM node (cgroup v2)")
    up.set_defaults(act=_up)

    down = verbs.add_parser("down", help="stop everything and leave nothing on the machine")
    down.add_argument("--purge", action="store_true", help="also forget jobs, homes and data")
    down.set_defaults(act=_down)

    roots = verbs.add_parser("roots", help="make the roots that hold other releases of Slurm")
    roots.add_argument("releases", nargs="*", default=[default_release()], help=", ".join(RELEASES))
    roots.set_defaults(act=_roots)

    verbs.add_parser("status", help="what runs").set_defaults(act=_status)

    vm = verbs.add_parser("vm", help="start or stop the VM node of a running lab")
    vm.add_argument("verb", choices=("start", "stop"))
    vm.set_defaults(act=_vm)

    recorded = verbs.add_parser("record", help="record slurmrestd's answers about a set of jobs")
    recorded.add_argument("folder", type=Path)
    recorded.set_defaults(act=_record)

    seen = verbs.add_parser("record-environments", help="record what processes of jobs have")
    seen.add_argument("file", type=Path)
    seen.set_defaults(act=_record_environments)

    shell = verbs.add_parser("shell", help="a shell as somebody in the lab, logged in")
    shell.add_argument("user", nargs="?", default="alice", help=names)
    shell.add_argument("--scope", action="append", default=[], help="such as sensitive:claim")
    shell.set_defaults(act=_shell)

    sensitive = verbs.add_parser("sensitive", help="serve sensitive work, with a signed image")
    sensitive.set_defaults(act=_sensitive)

    run = verbs.add_parser("run", help="a command as somebody in the lab")
    run.add_argument("user", help=f"{names}, or root")
    run.add_argument("command", nargs="+")
    run.set_defaults(act=_run)

    on = verbs.add_parser("on", help="a command as root on a node")
    on.add_argument("node")
    on.add_argument("command", nargs="+")
    on.set_defaults(act=_on)
    return parser


def _up(asked: argparse.Namespace) -> int:
    parts = [part for part in asked.parts.split(",") if part]
    lab = Lab(
        asked.name,
        parts=parts,
        servers=asked.servers,
        vm=asked.vm,
        slurm=asked.slurm,
        auth=asked.auth,
    )
    lab.up(report=lambda line: print(line, flush=True))
    return 0


def _roots(asked: argparse.Namespace) -> int:
    for release in asked.releases:
        root = slurm_root(release)
        if root is not None:
            root.ensure()
            print(f"Slurm {release}: {root.folder}")
    return 0


def _record(asked: argparse.Namespace) -> int:
    versions = record(Lab.attach(asked.name), asked.folder)
    print(f"{asked.folder}: {', '.join(versions)}")
    return 0


def _record_environments(asked: argparse.Namespace) -> int:
    count = record_environments(Lab.attach(asked.name), asked.file)
    print(f"{asked.file}: {count} processes")
    return 0


def _down(asked: argparse.Namespace) -> int:
    try:
        lab = Lab.attach(asked.name)
    except LabError:
        lab = Lab(asked.name, parts=())
    lab.down(purge=asked.purge, report=lambda line: print(line, flush=True))
    return 0


def _status(asked: argparse.Namespace) -> int:
    lab = Lab.attach(asked.name)
    print(f"lab {lab.name} in {lab.layout.state}; API {API_URL} inside {lab.network.control}")
    for process in lab.processes:
        condition = process.condition
        pid = str(process.pid) if condition in ("running", "frozen") else "-"
        print(f"  {process.name:<16} {condition:<8} {pid}")
    if lab.servers and not EXECUTABLE.exists():
        print(f"  {'server':<16} skipped  {EXECUTABLE} is not installed")
    return 0 if all(process.alive for process in lab.processes) else 3


def _vm(asked: argparse.Namespace) -> int:
    slurm = Lab.attach(asked.name).slurm
    act = slurm.start_vm if asked.verb == "start" else slurm.stop_vm
    act()
    return 0


def _shell(asked: argparse.Namespace) -> NoReturn:
    lab = Lab.attach(asked.name)
    if can_log_in() and lab.servers:
        log_in(lab.sessions, lab.network, asked.user, *asked.scope)
    settings = lab.layout.etc / "bashrc"
    settings.write_text(_SETTINGS)
    _become(*lab.sessions.argv(asked.user, ["bash", "--rcfile", str(settings), "-i"]))


def _sensitive(asked: argparse.Namespace) -> int:
    lab = Lab.attach(asked.name)
    nodes = lab.slurm.nodes
    sign(mount_image(lab, *nodes))
    serve_sensitive_work(lab)
    print(f"vCluster {VCLUSTER}; jobs that start on {', '.join(nodes)} run in a signed image.")
    print("Next: `lab shell alice --scope sensitive:claim`, then `lattice admin claim n1`.")
    return 0


def _run(asked: argparse.Namespace) -> NoReturn:
    lab = Lab.attach(asked.name)
    if asked.user == "root":
        room = lab.control.room
        _become(room.argv(asked.command, cwd="/"), dict(room.environment))
    _become(*lab.sessions.argv(asked.user, asked.command))


def _on(asked: argparse.Namespace) -> int:
    lab = Lab.attach(asked.name)
    if asked.node == lab.vm.name:  # reached by a serial line, which is no terminal
        done = lab.vm.run(asked.command, check=False)
        sys.stdout.write(done.stdout)
        sys.stderr.write(done.stderr)
        return done.returncode
    if asked.node not in lab.slurm.nodes:
        raise LabError(f"no node {asked.node}; there are {', '.join(lab.slurm.nodes)}")
    return _become(lab.node(asked.node).argv(asked.command), dict(lab.control.room.environment))


def _become(argv: list[str], environment: dict[str, str]) -> NoReturn:
    """Turn into the command, terminal and all."""
    terminal = {name: os.environ[name] for name in ("TERM", "COLORTERM") if name in os.environ}
    sys.stdout.flush()
    os.execvpe(argv[0], argv, environment | terminal)


if __name__ == "__main__":
    sys.exit(main())
