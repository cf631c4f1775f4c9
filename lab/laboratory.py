"""The lab as a whole: which parts there are, in what order they start, and how all of it goes.

`Lab` composes handles; it holds no process. Another program that builds a `Lab` of the same name
(`Lab.attach`) has the same handles on the same processes.
"""

from __future__ import annotations

import fcntl
import json
import shutil
import subprocess
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from types import TracebackType
from typing import Any, Protocol, Self

from lab import users
from lab.agent import ClusterIdentity
from lab.certificates import Authority
from lab.cgroup import Hierarchies
from lab.command import LabError
from lab.control import Control
from lab.etcd import Etcd
from lab.gate import Gate
from lab.jobs import Jobs
from lab.layout import DEFAULT_NAME, Layout
from lab.login import log_in
from lab.network import Network
from lab.node import Node
from lab.oidc import IdentityProvider
from lab.process import Process
from lab.seaweedfs import SeaweedFS
from lab.server import EXECUTABLE, Server
from lab.session import Sessions
from lab.slurm import Slurm
from lab.slurm_config import SlurmFiles
from lab.slurm_root import default_authentication, default_release, slurm_root
from lab.survivor import Survivor
from lab.sweep import sweep
from lab.teardown import PATIENCE_S
from lab.victoriametrics import VictoriaMetrics
from lab.vm import VirtualNode

ENGINES = ("slurm", "oidc", "etcd", "victoriametrics", "seaweedfs")
PARTS = (*ENGINES, "server", "agents")

Report = Callable[[str], None]


def _silent(_: str) -> None:
    """Report to nobody."""


_RELAUNCH_S = 4.0


class Part(Protocol):
    """An engine of the lab: one thing that goes up and down."""

    @property
    def name(self) -> str: ...
    @property
    def processes(self) -> list[Process]: ...
    def up(self) -> None: ...
    def down(self) -> None: ...


class Lab:
    """One lab: `up`, use, `down`; or `with Lab(...) as lab`."""

    def __init__(
        self,
        name: str = DEFAULT_NAME,
        *,
        parts: Collection[str] = PARTS,
        servers: int = 1,
        vm: bool = False,
        slurm: str = "",
        auth: str = "",
        first_job_id: int = 1,
        settings: Mapping[str, dict[str, Any]] | None = None,
        access_token_ttl_s: int = 600,
        patience_s: float = PATIENCE_S,
    ) -> None:
        """`slurm`: a release, or the default one. `auth`: `munge` or `slurm`.

        `patience_s`: how long processes of an old lab may take, without any ending.
        """
        unknown = set(parts) - set(PARTS)
        if unknown:
            raise LabError(f"no such part: {sorted(unknown)}; there are {', '.join(PARTS)}")
        if vm and "slurm" not in parts:
            raise LabError("the VM node is a node of Slurm: it needs the part slurm")
        self.name = name
        self.parts = frozenset(parts)
        self._with_vm = vm
        self._first_job_id = first_job_id
        self._patience_s = patience_s
        self.layout = Layout(name)
        self._hierarchies = Hierarchies.of_host()
        self.network = Network(self.layout)
        slurm = slurm or default_release()
        self._root = slurm_root(slurm)
        self.control = Control(self.layout, self.network, self._hierarchies, self._root)
        self.sessions = Sessions(self.layout, self.control.room)
        self.jobs = Jobs(self.control.room, self.sessions)

        engine = (self.layout, self.control.room, self.network)
        own = (self.layout, self.control.machine, self.network)
        self.slurm = Slurm(
            self.layout,
            self.control,
            self.network,
            self._hierarchies,
            release=slurm,
            auth=auth or default_authentication(),
            first_job_id=first_job_id,
        )
        self.oidc = IdentityProvider(*own, access_token_ttl_s=access_token_ttl_s)
        self.etcd = Etcd(*engine)
        self.victoriametrics = VictoriaMetrics(*engine)
        self.seaweedfs = SeaweedFS(*own)
        self.gate = Gate(self.layout, self.control.room)
        wanted = servers if "server" in self.parts else 0
        self._settings = dict(settings or {})
        self.servers = [
            Server(number, self.parts, *engine, settings=self._settings)
            for number in range(1, wanted + 1)
        ]

    @classmethod
    def attach(cls, name: str = DEFAULT_NAME) -> Self:
        """Handles on a lab that another program brought up."""
        try:
            made = json.loads((Layout(name).state / "lab.json").read_text())
            return cls(name, **made)
        except FileNotFoundError:
            raise LabError(f"there is no lab {name!r}; start it with `up`") from None
        except (ValueError, TypeError) as fault:  # cut short, or of another version
            raise LabError(f"lab {name!r} is not one of this version: {fault}") from None

    @property
    def engines(self) -> list[Part]:
        every: list[Part] = [
            self.slurm,
            self.oidc,
            self.etcd,
            self.victoriametrics,
            self.seaweedfs,
        ]
        return [part for part in every if part.name in self.parts]

    @property
    def processes(self) -> list[Process]:
        engines = [process for part in self.engines for process in part.processes]
        servers = [server.process for server in self.servers if EXECUTABLE.exists()]
        gates = self.gate.processes if self._has_gate else []
        return [self.control.holder, *engines, *gates, *servers]

    @property
    def _has_gate(self) -> bool:
        """Beside the servers, where there is a Slurm to submit to."""
        return bool(self.servers) and "slurm" in self.parts

    def up(self, report: Report = _silent) -> None:
        """Start every part, after ending a lab of this name or clearing what was left of it."""
        clock = _Stopwatch(report)
        with self._locked(clock):
            for survivor in self._end(clock):
                clock.tell("left over", str(survivor))
            if self._root is not None:
                self._root.ensure()
            self._forget_other_release(clock)
            users.ensure_accounts()
            self.layout.make_folders()
            users.make_homes(self.layout.home)
            self._remember()
            authority = Authority.create(self.layout.certificates)
            self.control.up()
            clock.tell("control")
            self.etcd.prepare(authority)
            with ThreadPoolExecutor(len(ENGINES)) as pool:
                list(pool.map(clock.timed, self.engines))
            if self._with_vm:
                self.slurm.start_vm()
                clock.tell(self.vm.name)
            self._start_servers(authority, clock)
        clock.tell("lab")

    def _forget_other_release(self, clock: _Stopwatch) -> None:
        """Remove what engines of another release have stored: older ones can't read it."""
        with suppress(LabError):
            before = self.attach(self.name).slurm
            if (before.release, before.auth) != (self.slurm.release, self.slurm.auth):
                clock.tell("forgotten", f"what the lab had on Slurm {before.release}")
                shutil.rmtree(self.layout.state)

    def _start_servers(self, authority: Authority, clock: _Stopwatch) -> None:
        if self.servers:
            ClusterIdentity(self.layout).prepare()
        if self._has_gate:
            clock.timed(self.gate)
        for server in self.servers:
            server.prepare(authority)
            if not EXECUTABLE.exists():
                clock.tell(server.name, f"skipped: {EXECUTABLE} is not installed")
        if self.servers and EXECUTABLE.exists() and "etcd" in self.parts:
            self.servers[0].bootstrap()
        if self.servers and EXECUTABLE.exists():
            with ThreadPoolExecutor(len(self.servers)) as pool:
                list(pool.map(clock.timed, self.servers))
        if "agents" in self.parts and self.servers and "slurm" in self.parts:
            nodes = list(self.slurm.nodes.values())
            with ThreadPoolExecutor(len(nodes)) as pool:
                list(pool.map(lambda node: node.agent.start(), nodes))
            clock.tell("agents")

    def down(self, *, purge: bool = False, report: Report = _silent) -> None:
        """Stop every part and remove all of it from the machine. Harmless if there is none."""
        clock = _Stopwatch(report)
        with self._locked(clock):
            survivors = self._end(clock)
            if purge and self.layout.state.exists():
                shutil.rmtree(self.layout.state)
        if survivors:
            told = "; ".join(str(survivor) for survivor in survivors)
            raise LabError(f"everything is down but what can't be ended: {told}")
        clock.tell("down", "and gone" if purge else "")

    def _end(self, clock: _Stopwatch) -> list[Survivor]:
        """Stop the parts in good order if they run, and remove what is left in any case."""
        try:
            if self.control.holder.alive:
                self._stop_parts()
        except LabError as problem:
            # The sweep has its own means. What it can't end either, it returns.
            clock.tell("not in order", str(problem))
        finally:
            survivors = self._sweep()
        return survivors

    def _sweep(self) -> list[Survivor]:
        return sweep(self.layout, self._hierarchies, self.network, patience_s=self._patience_s)

    def _stop_parts(self) -> None:
        """Let those end in good order that keep something; each, though an earlier one fails."""
        with ThreadPoolExecutor(len(ENGINES)) as pool, ExitStack() as steps:
            steps.callback(lambda: list(pool.map(lambda part: part.down(), self.engines)))
            steps.callback(self.gate.down)
            for server in self.servers:
                steps.callback(server.stop)

    def __enter__(self) -> Self:
        try:
            self.up()
        except BaseException:
            self._sweep()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.down()

    def _remember(self) -> None:
        made = {
            "parts": sorted(self.parts),
            "servers": len(self.servers),
            "vm": self._with_vm,
            "slurm": self.slurm.release,
            "auth": self.slurm.auth,
            "first_job_id": self._first_job_id,
            "settings": self._settings,
        }
        # Killed in between, the next `down` must not find half of it.
        partial = self.layout.state / "lab.json.partial"
        partial.write_text(json.dumps(made))
        partial.rename(self.layout.state / "lab.json")

    @contextmanager
    def _locked(self, clock: _Stopwatch) -> Iterator[None]:
        """One `up` or `down` of this lab at a time."""
        with self.layout.lock_file.open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                clock.tell("waiting", f"for another `up` or `down` of lab {self.name}")
                fcntl.flock(file, fcntl.LOCK_EX)
            yield

    # What tests and people do in a lab that is up.

    def enter_network(self) -> AbstractContextManager[None]:
        """This thread inside the control network, where every engine listens."""
        return self.network.entered()

    def node(self, name: str) -> Node:
        return self.slurm.nodes[name]

    @property
    def vm(self) -> VirtualNode:
        """The node that is a virtual machine; `slurm.start_vm` boots it."""
        return self.slurm.vm

    def ctl(
        self, argv: Sequence[str], *, timeout_s: float = 60.0, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """A command as root in the control room."""
        return self.control.room.run(argv, timeout_s=timeout_s, check=check)

    def run_as(
        self,
        user: str,
        argv: Sequence[str],
        *,
        input: str | None = None,  # noqa: A002  as subprocess calls it
        env: Mapping[str, str] | None = None,
        timeout_s: float = 60.0,
        check: bool = False,
    ) -> subprocess.CompletedProcess[str]:
        """A command as a person of the lab, in her home."""
        return self.sessions.run(user, argv, input=input, env=env, timeout_s=timeout_s, check=check)

    def popen_as(
        self,
        user: str,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        stdin: int | None = subprocess.DEVNULL,
        stdout: int | None = subprocess.PIPE,
        stderr: int | None = subprocess.PIPE,
    ) -> subprocess.Popen[str]:
        """The same, still running."""
        return self.sessions.popen(user, argv, env=env, stdin=stdin, stdout=stdout, stderr=stderr)

    def log_in(self, user: str, *scopes: str) -> None:
        """Leave the person logged in to lattice-server; role scopes have to be asked for."""
        log_in(self.sessions, self.network, user, *scopes)

    def sbatch(
        self, user: str, *options: str, script: str | None = None, wrap: str | None = None
    ) -> int:
        """Submit a job as a person; answers its id."""
        return self.jobs.submit(user, *options, script=script, wrap=wrap)

    def wait_job_state(
        self, job: int | str, states: str | Collection[str], timeout_s: float = 120.0
    ) -> str:
        return self.jobs.wait_state(job, states, timeout_s)

    def start_requeued(self, job: int) -> None:
        """Let a requeued job run soon; Slurm holds it for two minutes otherwise.

        Not at once: for some seconds slurmd refuses to launch a job that it has just killed, and
        what a node still clears away of the first run would be missing in the second.
        """
        kept = SlurmFiles(self.layout.state).job_tmp
        deadline = time.monotonic() + 30
        while any(
            node.alive
            and not node.run(["test", "-e", str(kept / name / str(job))], check=False).returncode
            for name, node in self.slurm.nodes.items()
        ):
            if time.monotonic() > deadline:
                raise LabError(f"nodes do not clear away what they have of job {job}")
            time.sleep(0.2)
        time.sleep(_RELAUNCH_S)
        self.ctl(["scontrol", "update", f"jobid={job}", "starttime=now"])


class _Stopwatch:
    """Reports what happened and when, in seconds since the start."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._start = time.monotonic()

    def tell(self, what: str, note: str = "") -> None:
        elapsed_s = time.monotonic() - self._start
        self._report(f"{elapsed_s:6.2f} s  {what:<16} {note}".rstrip())

    def timed(self, part: Part | Server) -> None:
        began = time.monotonic()
        part.up()
        self.tell(part.name, f"took {time.monotonic() - began:.2f} s")
