"""Slurm in the lab: munge, slurmdbd on MariaDB, slurmctld, two slurmrestd, and the nodes.

`up` has a fixed order because Slurm has one: accounting must be loaded before slurmctld starts,
or it refuses everybody until its next look.
"""

from __future__ import annotations

import hashlib
import os
import signal
import stat
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from lab import slurm_config as config
from lab import users
from lab.addresses import CONTROL, NODES, SLURMDBD_PORT, SLURMRESTD_PORT
from lab.cgroup import Hierarchies
from lab.command import LabError
from lab.control import Control
from lab.files import give, owned_folder, secret
from lab.layout import Layout
from lab.mariadb import PASSWORD, Database
from lab.network import Network
from lab.node import Node
from lab.process import Process
from lab.slurm_root import OWN_RELEASE, SlurmRoot, slurm_root
from lab.vm import VirtualNode

_NVIDIA_MAJOR = 195
_AT_WORK = "idle,mixed,allocated"


class Slurm:
    """Handles on the daemons and nodes of one cluster."""

    name = "slurm"

    def __init__(
        self,
        layout: Layout,
        control: Control,
        network: Network,
        hierarchies: Hierarchies,
        *,
        release: str = OWN_RELEASE,
        auth: str = "munge",
        first_job_id: int = 1,
    ) -> None:
        root = slurm_root(release)
        if auth not in config.AUTHENTICATIONS or (auth == "slurm" and root is None):
            raise LabError(f"Slurm {release} has no auth/{auth}")
        self.release = release
        self.auth = auth
        self.root = root
        """Of its release; None for the machine's own."""
        self._layout = layout
        self._room = control.room
        self._first_job_id = first_job_id
        self.files = config.SlurmFiles(layout.state)
        self.munged = self._munged()
        self.database = Database(self.files.database, layout, self._room, network)
        self.dbd = self._daemon("slurmdbd", lambda: network.accepts(SLURMDBD_PORT))
        self.ctld = self._daemon("slurmctld", self._controller_answers)
        self.restd = self._rest_local()
        self.restd_jwt = self._rest_jwt(network)
        environment = dict(control.room.environment)
        self.nodes = {
            name: Node(name, layout, network, hierarchies, environment, root) for name in NODES
        }
        self.vm = VirtualNode(layout, control, network)

    def _munged(self) -> Process:
        folder = self.files.munge
        words = {"key-file": "key", "socket": "sock", "pid-file": "pid", "log-file": "log"}
        options = [f"--{option}={folder}/{file}" for option, file in words.items()]
        argv = ["/usr/sbin/munged", "-F", *options, f"--seed-file={folder}/seed", "--num-threads=4"]
        return Process(
            "munged",
            argv,
            self._layout,
            self._room,
            user="munge",
            prepare=lambda: (folder / "sock").unlink(missing_ok=True),
            probe=(folder / "sock").exists,
        )

    def _daemon(self, name: str, probe: Callable[[], bool]) -> Process:
        argv = [f"/usr/sbin/{name}", "-D"]
        folder = f"/run/{name}"  # for the socket of auth/slurm

        def prepare() -> None:
            self._room.run(["install", "-d", "-o", "slurm", folder])

        own_folder = prepare if self.auth == "slurm" else None
        return Process(
            name, argv, self._layout, self._room, user="slurm", prepare=own_folder, probe=probe
        )

    def _rest_local(self) -> Process:
        socket = self.files.rest_socket
        return Process(
            "slurmrestd",
            ["/usr/sbin/slurmrestd", "-a", "rest_auth/local", f"unix:{socket}"],
            self._layout,
            self._room,
            user=users.SERVER_USER,
            prepare=lambda: socket.unlink(missing_ok=True),
            probe=socket.exists,
            stop_signal=signal.SIGKILL,  # slurmrestd 22.05 does not hear SIGTERM while idle
        )

    def _rest_jwt(self, network: Network) -> Process:
        listen = f"{CONTROL}:{SLURMRESTD_PORT}"
        socket = self.files.rest_jwt_socket
        return Process(
            "slurmrestd-jwt",
            ["/usr/sbin/slurmrestd", "-a", "rest_auth/jwt", listen, f"unix:{socket}"],
            self._layout,
            self._room,
            user=users.SERVER_USER,
            env={"SLURM_JWT": "daemon"},
            prepare=lambda: socket.unlink(missing_ok=True),
            probe=lambda: network.accepts(SLURMRESTD_PORT, CONTROL),
            stop_signal=signal.SIGKILL,
        )

    @property
    def processes(self) -> list[Process]:
        daemons = [
            *([self.munged] if self.auth == "munge" else []),
            self.database.process,
            self.dbd,
            self.ctld,
            self.restd,
            self.restd_jwt,
        ]
        nodes = [process for node in self.nodes.values() for process in node.processes]
        return [*daemons, *nodes, *(self.vm.processes if self.vm.alive else ())]

    def up(self) -> None:
        self._write_files()
        if self.auth == "munge":
            self.munged.up()
        self.database.fill(_accounting_version(self.root), self._load_accounting)
        self.database.process.up()
        try:
            self.dbd.up()
        except LabError:
            # Seen once in some hundred: a database that has just begun gives it no answer ("We
            # should have gotten a result"), and it ends. On a real node systemd starts it again.
            self.dbd.up()
        starts = [self.ctld.up, *(node.start for node in self.nodes.values())]
        with ThreadPoolExecutor(len(starts)) as pool:
            list(pool.map(lambda start: start(), starts))
            list(pool.map(Process.up, [self.restd, self.restd_jwt]))
        self.wait_nodes(list(self.nodes))

    def start_vm(self) -> None:
        """Boot the VM node; Slurm takes a FUTURE node in as soon as its slurmd registers."""
        self.vm.start()
        self._write_slurm_conf()
        self.wait_nodes([self.vm.name])

    def stop_vm(self) -> None:
        """Cut the VM node's power and let Slurm forget it."""
        self.vm.power_cut()
        self._write_slurm_conf()
        self._room.run(["scontrol", "update", f"nodename={self.vm.name}", "state=future"])

    def down(self) -> None:
        # Each step is taken though an earlier one fails; a stack takes the last one first.
        with ThreadPoolExecutor() as pool, ExitStack() as steps:
            for process in (self.munged, self.database.process, self.dbd):
                steps.callback(process.stop)
            steps.callback(self.vm.power_cut)
            steps.callback(lambda: list(pool.map(Node.power_cut, self.nodes.values())))
            # The controller first: it would wait for answers from nodes that are cut off.
            list(pool.map(Process.stop, [self.restd, self.restd_jwt, self.ctld]))

    def scontrol(self, *words: str) -> str:
        """What scontrol answers to root."""
        return self._room.run(["scontrol", *words]).stdout

    def token(self, user: str, lifespan_s: int = 3600) -> str:
        """A JWT that slurmrestd on the network takes for this user."""
        answer = self.scontrol("token", f"username={user}", f"lifespan={lifespan_s}")
        return answer.strip().removeprefix("SLURM_JWT=")

    def wait_nodes(self, names: list[str], state: str = _AT_WORK, timeout_s: float = 60.0) -> None:
        """Wait until all these nodes are in the state (sinfo's word; several with commas)."""
        deadline = time.monotonic() + timeout_s
        ask = ["sinfo", "-h", "-N", "-t", state, "-o", "%N"]
        while True:
            found = set(self._room.run(ask, check=False).stdout.split())
            if found.issuperset(names):
                return
            if time.monotonic() > deadline:
                seen = self._room.run(["sinfo", "-N", "-l"], check=False).stdout
                raise LabError(f"nodes {names} not {state} after {timeout_s:g} s:\n{seen}")
            time.sleep(0.05)

    def reset_controller(self, first_job_id: int) -> None:
        """Start slurmctld again without any memory of jobs, counting from this id.

        What happens to a site that loses its state folder: ids are used a second time, and
        slurmdbd holds two jobs of one id. With jobs still on the nodes it is refused: slurmd
        would be killing these orphans while the next job starts, and fail that one too.
        """
        if left := self._room.run(["squeue", "-h", "-a", "-o", "%A"]).stdout.split():
            raise LabError(f"jobs {', '.join(left)} are not done; end them first")
        self.ctld.stop()
        state = self.files.controller_state
        # With the cluster's name slurmctld takes the folder for its own, and 26.05 does not start
        # without jobs in it.
        for file in (*state.glob("job_state*"), *state.glob("clustername*")):
            file.unlink()
        self._first_job_id = first_job_id
        self._write_slurm_conf()
        self.ctld.up()
        self.wait_nodes([name for name, node in self.nodes.items() if node.alive])

    def _controller_answers(self) -> bool:
        return self._room.run(["scontrol", "ping"], check=False).returncode == 0

    def _load_accounting(self) -> None:
        self.dbd.up()
        for batch in users.accounting():
            said = self._room.run(["sacctmgr", "-i"], input="\n".join(batch) + "\n", check=False)
            with (self._layout.log / "sacctmgr.log").open("a") as log:
                log.write(said.stdout + said.stderr)
        listed = self._room.run(["sacctmgr", "-nP", "show", "user", "format=user"]).stdout
        missing = {person.name for person in users.PEOPLE} - set(listed.split())
        if missing:
            raise LabError(f"sacctmgr did not add {sorted(missing)}; see log/sacctmgr.log")
        self.dbd.stop()

    def _write_slurm_conf(self) -> None:
        # A FUTURE node that has registered is FUTURE again when slurmctld restarts, so the file
        # says which it is. A reader must never find half of it.
        text = config.slurm_conf(
            self.files,
            first_job_id=self._first_job_id,
            with_vm=self.vm.alive,
            auth=self.auth,
        )
        partial = self._layout.slurm_conf.with_suffix(".partial")
        partial.write_text(text)
        partial.rename(self._layout.slurm_conf)

    def _write_files(self) -> None:
        files = self.files
        owned_folder(files.controller_state, "slurm")
        owned_folder(files.rest, users.SERVER_USER)
        owned_folder(self._layout.log, "slurm")
        secret(owned_folder(files.munge, "munge") / "key", 128, "munge")
        secret(files.jwt_key, 32, "slurm")
        if self.auth == "slurm":
            secret(files.slurm_key, 1024, "slurm")
        files.job_tmp.mkdir(exist_ok=True)
        files.devices.mkdir(exist_ok=True)
        for number in range(config.GPUS):
            device = files.devices / f"nvidia{number}"
            if not device.exists():
                os.mknod(device, 0o666 | stat.S_IFCHR, os.makedev(_NVIDIA_MAJOR, number))
                device.chmod(0o666)
        self._write_slurm_conf()
        (files.etc / "topology.conf").write_text(config.topology_conf())
        (files.etc / "gres.conf").write_text(config.gres_conf(files))
        (files.etc / "cgroup.conf").write_text(config.cgroup_conf(self.release))
        (files.etc / "job_container.conf").write_text(config.job_container_conf(files))
        dbd = files.etc / "slurmdbd.conf"
        dbd.touch(mode=0o600)
        dbd.write_text(config.slurmdbd_conf(files, password=PASSWORD, auth=self.auth))
        give(dbd, "slurm")


def _accounting_version(root: SlurmRoot | None) -> str:
    """Changes with what the accounting database would hold and the programs that write it."""
    folder = Path("/") if root is None else root.folder
    programs = (folder / "usr/sbin/mariadbd", folder / "usr/sbin/slurmdbd")
    made_by = [(str(program), program.stat().st_mtime_ns) for program in programs]
    return hashlib.sha256(repr((users.accounting(), made_by)).encode()).hexdigest()[:16]
