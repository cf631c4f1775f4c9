"""`lattice-helper`: flags configure it; there is no configuration file.

Steps that need full root (the socket's owner, the file of keys, the eBPF program) come first. Then
the helper drops capabilities, and only then accepts the first connection.
"""

from __future__ import annotations

import argparse
import os
import pwd
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from lattice.base.clock import Clock, SystemClock
from lattice.base.process import reset_inherited_signals, settle
from lattice.base.systemd import Systemd
from lattice.domain.administration import AdministrationQuestion, VerbGroup
from lattice.domain.privileged import (
    VERBS,
    Answer,
    DumpStacks,
    Enter,
    HelperRole,
    NoteOutput,
    OpenNoted,
    OpenOutput,
    OpenOutputFile,
    Outcome,
    ProbeMounts,
    ReadTasks,
    Rejoin,
    WatchCounters,
)
from lattice.domain.submission import CancelQuestion, SubmitQuestion
from lattice.helper.account import Accounts, LoginDefaults, slurm_users, uids_of
from lattice.helper.administration import AdministrationPrograms, AdministrationVerbs
from lattice.helper.conversation import LONGEST_S, Conversation, Reader
from lattice.helper.counters import JobCounters
from lattice.helper.flags import helper_flags
from lattice.helper.gate import Gate, Slurm, gate_shares
from lattice.helper.holder import HolderTimes
from lattice.helper.images import ImageDigests, JobImages, SiteImages
from lattice.helper.inode import Inodes
from lattice.helper.job_entry import Foresight
from lattice.helper.jobgroups import JobPids
from lattice.helper.journal import HelperJournal
from lattice.helper.judge import AskedGrant, GrantJudge
from lattice.helper.latency import start_latency
from lattice.helper.listen import HelperListener, SocketRefused, Stay, adopt, bind
from lattice.helper.notes import Notes
from lattice.helper.outputs import OutputFiles
from lattice.helper.peers import job_peers
from lattice.helper.privilege import Capability, Kernel, keep_only
from lattice.helper.probe_base import JobFinder, ProbeSlots
from lattice.helper.probing_verbs import Probing, find_py_spy
from lattice.helper.programs import find_program
from lattice.helper.responder import Act
from lattice.helper.sessions import HelperSessions
from lattice.helper.terminal_process import TerminalProcess
from lattice.helper.terminal_verbs import Attaching
from lattice.helper.trusted_clock import ProvenClock

_BAD_CONFIGURATION = 78
_SLACK_S = 10.0
_SLOW_S = 2.0
_SLURM_FOLDERS = "/usr/bin:/usr/local/bin:/opt/slurm/bin"
_CLOCK_VERBS = ("challenge", "set_clock")
_NODE_VERBS = ("watch_counters", "open_output", "open_output_file", *_CLOCK_VERBS)
_NOTING_VERBS = ("note_output", "open_noted")
_ATTACHING_VERBS = ("enter", "rejoin")
_SIGNED_VERBS = ("enter_signed", "rejoin_signed")
_PROBING_VERBS = ("probe_mounts", "read_tasks", "dump_stacks")
_OFFERED = {HelperRole.GATE: ("submit", "cancel", "show_rights"), HelperRole.NODE: _NODE_VERBS}
_CAPABILITIES = {
    HelperRole.GATE: (Capability.SETUID, Capability.SETGID, Capability.KILL),
    # SYS_ADMIN, SYS_CHROOT: to join namespaces (`enter`, `probe_mounts`); KILL: a holder hangs up.
    HelperRole.NODE: (
        *(Capability.SETUID, Capability.SETGID, Capability.SYS_PTRACE),
        *(Capability.SYS_ADMIN, Capability.SYS_CHROOT, Capability.KILL),
    ),
}
# SYS_PTRACE: to refer to the file behind a descriptor of another process, never to open it.
_TO_READ = (Capability.SETUID, Capability.SETGID, Capability.SYS_PTRACE)
# SETUID: to open `/proc/PID/io` with its owner's file rights; SYS_PTRACE: to read it.
_TO_WATCH = (Capability.SETUID, Capability.SYS_PTRACE)

_Folder = TypeVar("_Folder")
_Swept = TypeVar("_Swept", Notes, HelperSessions)


class CanNotStart(Exception):
    """The given flags can't be used."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT. Exit code 78 if the flags can't be used."""
    options = helper_flags().parse_args(arguments)
    clock = SystemClock()
    journal = HelperJournal(clock)
    systemd = Systemd(os.environ)
    try:
        listener = _prepare(options, clock, journal, systemd)
    except (CanNotStart, SocketRefused, OSError, ValueError) as error:
        sys.stderr.write(f"lattice-helper can't start: {error}\n")
        return _BAD_CONFIGURATION
    # Children then share this memory: reference counts are not written in it.
    settle()
    journal.note("serving", role=options.role, place=options.place, socket=str(options.socket))
    systemd.ready(f"serves {options.role} on {options.socket}")
    listener.run(systemd.alive)
    systemd.stopping()
    journal.note("stopped")
    return 0


def _prepare(
    options: argparse.Namespace, clock: Clock, journal: HelperJournal, systemd: Systemd
) -> HelperListener:
    if os.geteuid() != 0:
        raise CanNotStart("it must be started as root; it gives most of that away at once")
    role = HelperRole(options.role)
    given = systemd.inherited(options.socket, socket.SOCK_SEQPACKET)
    _clean_surroundings(given)
    served = _served(options.allow_user)
    # Loads the libraries of the name service here, and not in each child again.
    os.getgrouplist(served.pw_name, served.pw_gid)
    # A gate runs beside a server and uses the same clock.
    proven = ProvenClock(
        clock, options.socket.parent / "clock" if role is HelperRole.NODE else None
    )
    notes = sessions = slots = digests = None
    if role is HelperRole.NODE:
        notes = _folder(journal, "notes", options, lambda folder: _swept(Notes(folder, proven)))
        sessions = _folder(
            journal, "sessions", options, lambda folder: _swept(HelperSessions(folder))
        )
        slots = _folder(journal, "probing", options, ProbeSlots)
        digests = _folder(journal, "images", options, ImageDigests) if options.image_keys else None
    judge = GrantJudge(
        role=role,
        location=options.place,
        allowed_uid=served.pw_uid,
        keys_file=options.grant_keys,
        offered=(*_offered(role, notes, sessions, slots, digests), *_allowed_verbs(options.allow)),
        clock=proven,
        on_keys=lambda word: journal.note("grant keys", state=word),
    )
    kernel = Kernel()
    stay = attaching = None
    if role is HelperRole.GATE:
        act = _gate(options, kernel, served)
    else:
        if sessions is not None:
            times = HolderTimes(
                hang_up_s=options.hang_up_s, kill_s=options.kill_s, linger_s=options.linger_s
            )
            attaching = Attaching(
                kernel,
                options.place,
                sessions,
                TerminalProcess(kernel, clock, journal, times),
                tools=not options.no_tools,
                images=_images(options, kernel, digests),
                foresight=Foresight(),
                to_server_time=proven.to_server_time,
            )
        latency = start_latency(
            kernel, clock, journal, options.place, options.latency_object, off=options.no_latency
        )
        probing = None
        if slots is not None:
            finder = JobFinder(options.place, to_server_time=proven.to_server_time)
            py_spy = find_py_spy(options.py_spy, journal)
            probing = Probing(kernel, finder, slots, py_spy, latency.calls)
        act = _node(kernel, notes, attaching, probing)
        counters = JobCounters(JobPids(options.place), kernel)
        stay = _watching(kernel, [counters, latency, job_peers(kernel, latency)])
    endpoint = bind(options.socket, served.pw_gid) if given is None else adopt(given)
    keep_only(kernel, _CAPABILITIES[role])
    return _listener(options, endpoint, judge, act, journal, stay, attaching)


def _images(
    options: argparse.Namespace, kernel: Kernel, digests: ImageDigests | None
) -> JobImages | None:
    return JobImages(kernel, SiteImages(options.image_keys, digests)) if digests else None


def _offered(
    role: HelperRole,
    notes: Notes | None,
    sessions: HelperSessions | None,
    slots: ProbeSlots | None,
    digests: ImageDigests | None,
) -> tuple[str, ...]:
    return (
        *_OFFERED[role],
        *(_NOTING_VERBS if notes is not None else ()),
        *(_ATTACHING_VERBS if sessions is not None else ()),
        *(_SIGNED_VERBS if sessions is not None and digests is not None else ()),
        *(_PROBING_VERBS if slots is not None else ()),
    )


def _allowed_verbs(allowed: Sequence[str]) -> tuple[str, ...]:
    """The gate's verbs that the site allows it."""
    groups = frozenset(map(VerbGroup, allowed))
    return tuple(verb.name for verb in VERBS.values() if verb.group in groups)


def _folder(
    journal: HelperJournal, what: str, options: argparse.Namespace, make: Callable[[Path], _Folder]
) -> _Folder | None:
    """Without this folder the other verbs still work; a folder that was given must be usable."""
    given: Path | None = getattr(options, what, None)
    try:
        return make(given or options.socket.parent / what)
    except (OSError, ValueError) as error:
        if given is not None:
            raise
        journal.note(f"no {what}", reason=str(error))
        return None


def _swept(made: _Swept) -> _Swept:
    made.sweep()
    return made


def _listener(
    options: argparse.Namespace,
    endpoint: socket.socket,
    judge: GrantJudge,
    act: Act,
    journal: HelperJournal,
    stay: Stay | None,
    attaching: Attaching | None,
) -> HelperListener:
    return HelperListener(
        endpoint,
        judge,
        act,
        journal,
        most_at_once=options.most_at_once,
        longest_s=options.timeout_s + _SLACK_S,
        stay=stay,
        longest_stay_s=LONGEST_S + _SLACK_S,
        opener=attaching,
        shares=gate_shares(options.most_at_once) if options.role == HelperRole.GATE.value else None,
        # Beside an agent, requests are about jobs, and a job can make them hang.
        slow_s=_SLOW_S if options.role == HelperRole.NODE.value else None,
    )


def _clean_surroundings(listener: socket.socket | None = None) -> None:
    reset_inherited_signals()
    os.environ.clear()
    os.environ["LANG"] = "C.UTF-8"
    os.umask(0o077)
    os.chdir("/")
    first = 3 if listener is None else listener.fileno()
    os.closerange(3, first)
    os.closerange(first + (listener is not None), 1024)
    nothing = os.open("/dev/null", os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)


def _served(name: str) -> pwd.struct_passwd:
    try:
        account = pwd.getpwnam(name)
    except KeyError:
        raise CanNotStart(f"there is no user {name}") from None
    if account.pw_uid == 0:
        raise CanNotStart("the user it serves must not be root")
    return account


def _gate(options: argparse.Namespace, kernel: Kernel, served: pwd.struct_passwd) -> Act:
    conf = options.slurm_conf
    if conf is not None and not conf.is_file():
        raise CanNotStart(f"{conf} is no file")
    refused = slurm_users(conf or Path("/etc/slurm/slurm.conf")) | {
        served.pw_name,
        *options.refuse_user,
    }
    accounts = Accounts(LoginDefaults.read(), refused, uids_of(refused))
    folders = str(options.slurm_bin) if options.slurm_bin else _SLURM_FOLDERS
    slurm = Slurm(
        sbatch=_program("sbatch", folders), scancel=_program("scancel", folders), conf=conf
    )
    gate = Gate(kernel, accounts, slurm, timeout_s=options.timeout_s)
    administration = AdministrationVerbs(
        kernel,
        accounts,
        AdministrationPrograms(
            scontrol=find_program("scontrol", folders),
            sacctmgr=find_program("sacctmgr", folders),
            squeue=find_program("squeue", folders),
            environment=slurm.environment,
        ),
        served,
        [VerbGroup(each) for each in options.allow],
        acts_as=options.administer_as,
        timeout_s=options.timeout_s,
    )

    def act(asked: AskedGrant, descriptors: Sequence[int]) -> tuple[Answer, Sequence[int]]:
        question, grant = asked.question, asked.grant
        assert grant is not None
        if isinstance(question, AdministrationQuestion):
            return administration.act(question, descriptors), ()
        if isinstance(question, SubmitQuestion):
            return gate.submit(grant, question, descriptors), ()
        assert isinstance(question, CancelQuestion)
        return gate.cancel(grant, question, descriptors), ()

    return act


def _program(name: str, folders: str) -> Path:
    found = find_program(name, folders)
    if found is None:
        raise CanNotStart(f"no {name} in {folders}; name Slurm's folder with --slurm-bin")
    return found


def _node(
    kernel: Kernel,
    notes: Notes | None,
    attaching: Attaching | None,
    probing: Probing | None = None,
) -> Act:
    inodes = Inodes()

    def act(asked: AskedGrant, descriptors: Sequence[int]) -> tuple[Answer, Sequence[int]]:
        question, grant = asked.question, asked.grant
        if isinstance(question, Enter | Rejoin):
            assert grant is not None
            assert attaching is not None  # the verbs are not offered without
            if isinstance(question, Enter):
                return attaching.enter(grant, question, descriptors)
            return attaching.rejoin(grant, question, descriptors)
        if isinstance(question, ProbeMounts | ReadTasks | DumpStacks):
            assert grant is not None
            assert probing is not None  # the verbs are not offered without
            return probing.act(grant, question, descriptors)
        if isinstance(question, WatchCounters):
            kernel.set_capabilities(_TO_WATCH)
            return _welcome(descriptors), ()
        kernel.set_capabilities(_TO_READ)
        files = OutputFiles(kernel, inodes, notes)
        if isinstance(question, NoteOutput):
            return files.note(question, descriptors), ()
        assert grant is not None
        assert isinstance(question, OpenOutput | OpenOutputFile | OpenNoted)
        return files.act(grant, question, descriptors)

    return act


def _welcome(descriptors: Sequence[int]) -> Answer:
    if descriptors:
        return Answer(outcome=Outcome.BAD_QUESTION, message="no descriptors belong to this")
    return Answer(outcome=Outcome.DONE)


def _watching(kernel: Kernel, readers: Sequence[Reader]) -> Stay:
    def stay(_: AskedGrant, connection: socket.socket) -> None:
        Conversation(readers, kernel).hold(connection)

    return stay


if __name__ == "__main__":
    sys.exit(main())
