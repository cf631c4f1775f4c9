"""The gate's verbs for administrators: they run Slurm's own programs as SlurmUser.

A site allows each group of them by `--allow`. The arguments are built here, from fields that were
checked, each a separate item of a list. No shell and no profile takes part. Before a change the
gate asks slurmctld which cluster it is, and whether each name is that of one node.
"""

from __future__ import annotations

import pwd
import re
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lattice.domain.administration import (
    AdministrationQuestion,
    GateRights,
    ListReservations,
    MakeReservation,
    NodeChange,
    NodeQuestion,
    RemoveReservation,
    RightsQuestion,
    TenantAct,
    TenantQuestion,
    VerbGroup,
)
from lattice.domain.nodeset import NodeSet
from lattice.domain.privileged import Answer, Outcome
from lattice.domain.tenants import limit_options
from lattice.helper.account import AccountRefused, Accounts, VerbRefused
from lattice.helper.login import NotTheUser, Program, run
from lattice.helper.privilege import Kernel
from lattice.helper.reservations import ClaimReservations

_SETTING = re.compile(r"\s*(\w+)\s*= ?(.*)")
_USER = re.compile(r"([A-Za-z_][A-Za-z0-9_.-]{0,63})\(([0-9]{1,10})\)", re.ASCII)
_NODE_LINE = re.compile(r"^NodeName=(\S+) ", re.MULTILINE)
_LONGEST_MESSAGE = 2000
_MOST_LISTED_BYTES = 8 * 1024 * 1024
_STATES = {
    NodeChange.DRAIN: ("drain",),
    # With `ReturnToService=2` a node that is only down returns with its next registration.
    NodeChange.DISABLE: ("drain", "down"),
    NodeChange.RESUME: ("resume",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AdministrationPrograms:
    """Where Slurm's programs are, and the environment they get."""

    scontrol: Path | None
    """None: it is not installed here."""
    sacctmgr: Path | None
    squeue: Path | None
    environment: dict[str, str]


@dataclass(frozen=True, slots=True)
class _Scheduler:
    """slurmctld's own name of the cluster, and the account that administers it."""

    cluster: str
    account: pwd.struct_passwd


class AdministrationVerbs:
    """Answers one question. Each request uses it in its own child."""

    def __init__(
        self,
        kernel: Kernel,
        accounts: Accounts,
        programs: AdministrationPrograms,
        served: pwd.struct_passwd,
        allowed: Collection[VerbGroup],
        *,
        acts_as: str,
        timeout_s: float,
    ) -> None:
        """`served` asks slurmctld who SlurmUser is. `acts_as` replaces SlurmUser, unless empty."""
        self._kernel = kernel
        self._accounts = accounts
        self._programs = programs
        self._served = served
        self._allowed = frozenset(allowed)
        self._acts_as = acts_as
        self._timeout_s = timeout_s
        self._until = 0.0

    def act(self, question: AdministrationQuestion, descriptors: Sequence[int]) -> Answer:
        """The answer; the child ends in time even if a program hangs."""
        if descriptors:
            return Answer(outcome=Outcome.BAD_QUESTION, message="no descriptors")
        self._until = time.monotonic() + self._timeout_s
        try:
            return Answer(outcome=Outcome.DONE, output=self._output(question))
        except VerbRefused as refusal:
            return refusal.answer

    def _output(self, question: AdministrationQuestion) -> str:
        if isinstance(question, RightsQuestion):
            return self._rights().written()
        scheduler = self._scheduler()
        if question.cluster != scheduler.cluster:
            message = f"this gate is of the cluster {scheduler.cluster}"
            raise VerbRefused(Outcome.BAD_QUESTION, message)
        if isinstance(question, NodeQuestion):
            self._change_nodes(scheduler, question)
        elif isinstance(question, TenantQuestion):
            self._change_tenant(scheduler, question)
        else:
            return self._reservations(scheduler, question)
        return ""

    def _rights(self) -> GateRights:
        groups = tuple(each for each in VerbGroup if each in self._allowed)
        try:
            user = self._scheduler().account.pw_name
        except VerbRefused as refusal:
            if refusal.answer.outcome is not Outcome.ACCOUNT_REFUSED:
                raise
            return GateRights(groups=groups, user="", fault=refusal.answer.message)
        return GateRights(groups=groups, user=user)

    def _change_nodes(self, scheduler: _Scheduler, question: NodeQuestion) -> None:
        nodes = self._known(scheduler, question.nodes)
        why = (f"reason={question.reason}",) if question.reason else ()
        for state in _STATES[question.change]:
            update = ("update", f"nodename={nodes.fold()}", f"state={state}")
            self._scontrol(scheduler.account, *update, *why)

    def _change_tenant(self, scheduler: _Scheduler, question: TenantQuestion) -> None:
        cluster, limits = f"cluster={scheduler.cluster}", limit_options(question.change)
        if question.act is TenantAct.CREATE:
            arguments = ("add", "account", question.name, cluster, *limits)
        else:
            where = ("where", f"name={question.name}", cluster)
            arguments = ("modify", "account", *where, "set", *limits)
        self._run(scheduler.account, "sacctmgr", self._programs.sacctmgr, ("-i", *arguments))

    def _reservations(
        self,
        scheduler: _Scheduler,
        question: MakeReservation | RemoveReservation | ListReservations,
    ) -> str:
        def scontrol(*arguments: str, may_fail: bool = False) -> str:
            return self._scontrol(scheduler.account, *arguments, may_fail=may_fail)

        def squeue(*arguments: str) -> str:
            return self._run(scheduler.account, "squeue", self._programs.squeue, arguments)

        reservations = ClaimReservations(scontrol, squeue)
        if isinstance(question, ListReservations):
            return reservations.part_after(question.after).written()
        if isinstance(question, RemoveReservation):
            reservations.remove(question.name)
            return ""
        try:
            self._accounts.find(question.user)
        except AccountRefused as refusal:
            raise VerbRefused(Outcome.FAILED, str(refusal)) from None
        nodes = self._known(scheduler, question.nodes, Outcome.FAILED)
        reservations.make(question.name, question.user, nodes)
        return ""

    def _known(
        self,
        scheduler: _Scheduler,
        names: Sequence[str],
        unknown: Outcome = Outcome.BAD_QUESTION,
    ) -> NodeSet:
        """The nodes, if slurmctld has one of exactly each name: a name may mean several."""
        nodes = NodeSet(names)
        show = ("-a", "-o", "show", "node", nodes.fold())
        listed = self._scontrol(scheduler.account, *show, may_fail=True)
        missing = nodes - NodeSet(_NODE_LINE.findall(listed))
        if missing:
            message = f"slurmctld has no node {missing.fold()}"
            raise VerbRefused(unknown, message)
        return nodes

    def _scheduler(self) -> _Scheduler:
        text = self._scontrol(self._served, "show", "config")
        lines = filter(None, map(_SETTING.fullmatch, text.splitlines()))
        settings = {line[1]: line[2].strip() for line in lines}
        return _Scheduler(settings.get("ClusterName", ""), self._account(settings))

    def _account(self, settings: dict[str, str]) -> pwd.struct_passwd:
        """Never root, and never another account than the one that slurmctld means."""
        found = _USER.fullmatch(settings.get("SlurmUser", ""))
        name = self._acts_as or (found[1] if found else "")
        try:
            account = pwd.getpwnam(name)
        except KeyError:
            message = f"this host has no account {name or 'for SlurmUser'}"
            raise VerbRefused(Outcome.ACCOUNT_REFUSED, message) from None
        if 0 in (account.pw_uid, account.pw_gid):
            message = "SlurmUser is root, and the gate runs nothing as root: see --administer-as"
            raise VerbRefused(Outcome.ACCOUNT_REFUSED, message)
        if not self._acts_as and found is not None and account.pw_uid != int(found[2]):
            message = f"{name} has another uid here than slurmctld's SlurmUser"
            raise VerbRefused(Outcome.ACCOUNT_REFUSED, message)
        return account

    def _scontrol(self, account: pwd.struct_passwd, *arguments: str, may_fail: bool = False) -> str:
        scontrol = self._programs.scontrol
        return self._run(account, "scontrol", scontrol, arguments, may_fail=may_fail)

    def _run(
        self,
        account: pwd.struct_passwd,
        name: str,
        file: Path | None,
        arguments: Sequence[str],
        *,
        may_fail: bool = False,
    ) -> str:
        """Its output. With `may_fail` that also counts if the program failed after it."""
        if file is None:
            raise VerbRefused(Outcome.FAILED, f"{name} is not installed beside the gate")
        program = Program(
            account=account,
            argv=[str(file), *arguments],
            environment=self._programs.environment,
            directory="/",
            with_profile=False,
            most_output_bytes=_MOST_LISTED_BYTES,
        )
        try:
            ended = run(
                self._kernel,
                self._accounts.defaults,
                program,
                max(0.0, self._until - time.monotonic()),
            )
        except NotTheUser:
            message = f"the gate could not become {account.pw_name}"
            raise VerbRefused(Outcome.ACCOUNT_REFUSED, message) from None
        if ended.code is None:
            message = f"{name} did not end within {self._timeout_s:g} s."
            raise VerbRefused(Outcome.UNSURE, message)
        if ended.code and not (may_fail and ended.out):
            text = (ended.err.strip() or ended.out.strip())[:_LONGEST_MESSAGE]
            refusal = VerbRefused(Outcome.FAILED, text or f"{name} ended with {ended.code}.")
            refusal.answer = replace(refusal.answer, exit_code=ended.code)
            raise refusal
        return ended.out
