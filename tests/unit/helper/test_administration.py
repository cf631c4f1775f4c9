"""The gate's changes in Slurm: what it runs, as whom, and what it refuses before that."""

from __future__ import annotations

import pwd
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from lattice.domain.administration import (
    AdministrationQuestion,
    NodeChange,
    NodeQuestion,
    RightsQuestion,
    TenantAct,
    TenantQuestion,
    VerbGroup,
    read_rights,
)
from lattice.domain.privileged import Answer, Outcome
from lattice.helper import administration
from lattice.helper.account import Accounts, LoginDefaults
from lattice.helper.administration import AdministrationPrograms, AdministrationVerbs
from lattice.helper.login import LoginEnded, NotTheUser, Program
from lattice.helper.privilege import Kernel

DRAIN = NodeQuestion(
    cluster="lab", change=NodeChange.DRAIN, nodes=("n1", "n2"), reason="olga: bad 'DIMM' $(x)"
)
CREATE = TenantQuestion(
    cluster="lab", act=TenantAct.CREATE, name="physics", max_nodes=4, max_gpus=8, max_jobs=None
)


def _account(name: str, uid: int, gid: int = 64030) -> pwd.struct_passwd:
    return pwd.struct_passwd((name, "x", uid, gid, "", "/", "/usr/sbin/nologin"))


class Site:
    """Slurm's programs, as they answer, and what was run as whom."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ran: list[tuple[str, list[str]]] = []
        self.config = "Configuration data\nClusterName   = lab\nSlurmUser      = slurm(64030)\n"
        self.nodes = ["n1", "n2", "n3"]
        self.accounts = {"slurm": _account("slurm", 64030), "admin": _account("admin", 1001)}
        self.fails: LoginEnded | None = None
        self.acts_as = ""
        self.sacctmgr: Path | None = Path("/bin/sacctmgr")
        monkeypatch.setattr(administration, "run", self._run)
        monkeypatch.setattr(administration.pwd, "getpwnam", self.accounts.__getitem__)

    def _run(
        self, _kernel: Kernel, _defaults: LoginDefaults, program: Program, _timeout_s: float
    ) -> LoginEnded:
        assert not program.with_profile
        assert program.directory == "/"
        argv = list(program.argv)
        if argv[1:] == ["show", "config"]:
            assert program.account.pw_name == "lattice"
            return LoginEnded(0, self.config, "", "", ())
        if argv[1:4] == ["-a", "-o", "show"]:
            listed = "".join(f"NodeName={each} Arch=x\n" for each in self.nodes)
            return LoginEnded(1, listed, "Node n9 not found", "", ())
        self.ran.append((program.account.pw_name, argv))
        return self.fails or LoginEnded(0, "", "", "", ())

    def ask(self, question: AdministrationQuestion, descriptors: Sequence[int] = ()) -> Answer:
        verbs = AdministrationVerbs(
            Kernel(),
            Accounts(LoginDefaults(), frozenset({"root", "slurm", "lattice"})),
            AdministrationPrograms(
                scontrol=Path("/bin/scontrol"),
                sacctmgr=self.sacctmgr,
                squeue=None,
                environment={},
            ),
            _account("lattice", 995),
            [VerbGroup.NODES],
            acts_as=self.acts_as,
            timeout_s=10.0,
        )
        return verbs.act(question, descriptors)


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Site:
    return Site(monkeypatch)


@pytest.mark.spec("OPS-4")
@pytest.mark.parametrize(
    ("change", "reason", "states"),
    [
        (NodeChange.DRAIN, DRAIN.reason, ["drain"]),
        (NodeChange.DISABLE, DRAIN.reason, ["drain", "down"]),
        (NodeChange.RESUME, "", ["resume"]),
    ],
)
def test_a_change_of_nodes_runs_as_slurmuser(
    site: Site, change: NodeChange, reason: str, states: list[str]
) -> None:
    answer = site.ask(replace(DRAIN, change=change, reason=reason))
    assert answer == Answer(outcome=Outcome.DONE)
    why = [f"reason={reason}"] if reason else []
    assert site.ran == [
        ("slurm", ["/bin/scontrol", "update", "nodename=n[1-2]", f"state={state}", *why])
        for state in states
    ]


@pytest.mark.spec("OPS-5")
def test_a_tenant_is_made_and_limited(site: Site) -> None:
    assert site.ask(CREATE).outcome is Outcome.DONE
    update = replace(CREATE, act=TenantAct.UPDATE, max_nodes=None, max_gpus=None, max_jobs=-1)
    assert site.ask(update).outcome is Outcome.DONE
    program, cluster = ["/bin/sacctmgr", "-i"], "cluster=lab"
    assert site.ran == [
        ("slurm", [*program, "add", "account", "physics", cluster, "grptres=node=4,gres/gpu=8"]),
        ("slurm", [*program, "modify", "account", "where", "name=physics", cluster, "set",
                   "grpjobs=-1"]),
    ]  # fmt: skip


@pytest.mark.spec("OPS-4")
@pytest.mark.threat("gate-changes")
def test_a_name_that_slurm_has_not_is_refused_and_no_other_node_changed(site: Site) -> None:
    # As for a NodeSet of slurm.conf: slurmctld shows its nodes, and none of that name.
    for name in ("n9", "rack1", "n1.example"):
        answer = site.ask(replace(DRAIN, nodes=("n1", name)))
        assert answer.outcome is Outcome.BAD_QUESTION
        assert answer.message == f"slurmctld has no node {name}"
    assert site.ran == []


@pytest.mark.threat("gate-changes")
@pytest.mark.parametrize("question", [DRAIN, CREATE])
def test_a_question_about_another_cluster_is_refused(
    site: Site, question: NodeQuestion | TenantQuestion
) -> None:
    answer = site.ask(replace(question, cluster="other"))
    assert (answer.outcome, site.ran) == (Outcome.BAD_QUESTION, [])


@pytest.mark.threat("gate-changes")
@pytest.mark.parametrize(
    ("slurm_user", "part"),
    [
        ("root(0)", "the gate runs nothing as root"),
        ("slurm(999)", "another uid"),
        ("nobody-here(5)", "no account nobody-here"),
        ("wheel(64031)", "the gate runs nothing as root"),
        ("", "no account for SlurmUser"),
        ("$(x)(1)", "no account for SlurmUser"),
    ],
)
def test_nothing_is_done_as_root_or_as_another_than_slurmuser(
    site: Site, slurm_user: str, part: str
) -> None:
    site.accounts["root"] = _account("root", 0)
    site.accounts["wheel"] = _account("wheel", 64031, gid=0)
    site.config = f"ClusterName = lab\nSlurmUser = {slurm_user}\n"
    answer = site.ask(DRAIN)
    assert (answer.outcome, site.ran) == (Outcome.ACCOUNT_REFUSED, [])
    assert part in answer.message
    rights = read_rights(site.ask(RightsQuestion()).output)
    assert (rights.user, rights.fault) == ("", answer.message)


def test_a_site_may_name_another_account(site: Site) -> None:
    site.acts_as = "admin"
    site.config = "ClusterName = lab\nSlurmUser = root(0)\n"
    assert site.ask(DRAIN).outcome is Outcome.DONE
    assert [user for user, _ in site.ran] == ["admin"]


def test_rights_are_those_that_the_site_allows(site: Site) -> None:
    rights = read_rights(site.ask(RightsQuestion()).output)
    assert (rights.groups, rights.user, rights.fault) == ((VerbGroup.NODES,), "slurm", "")


def test_what_slurm_answers_is_the_message(site: Site) -> None:
    site.fails = LoginEnded(1, "", "slurm_update error: Invalid node state specified\n", "", ())
    answer = site.ask(DRAIN)
    assert (answer.outcome, answer.exit_code) == (Outcome.FAILED, 1)
    assert answer.message == "slurm_update error: Invalid node state specified"
    site.fails = LoginEnded(None, "", "", "", ())
    assert site.ask(DRAIN).outcome is Outcome.UNSURE


def test_a_program_that_is_not_there_is_named(site: Site) -> None:
    site.sacctmgr = None
    answer = site.ask(CREATE)
    assert (answer.outcome, answer.message) == (
        Outcome.FAILED,
        "sacctmgr is not installed beside the gate",
    )


def test_descriptors_belong_to_no_change(site: Site) -> None:
    assert site.ask(DRAIN, [0]).outcome is Outcome.BAD_QUESTION
    assert site.ran == []


def test_a_process_that_did_not_become_the_account_has_run_nothing(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(*_: object) -> LoginEnded:
        raise NotTheUser("no")

    monkeypatch.setattr(administration, "run", run)
    assert site.ask(DRAIN).outcome is Outcome.ACCOUNT_REFUSED
