"""What `enter` and `rejoin` say when there is nothing to enter; the words are for the owner."""

from __future__ import annotations

import pwd
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lattice.domain.grant import Act, Grant
from lattice.domain.privileged import Answer, Enter, Outcome, Rejoin
from lattice.helper.holder import HolderTimes
from lattice.helper.journal import HelperJournal
from lattice.helper.privilege import Kernel
from lattice.helper.sessions import HelperSessions
from lattice.helper.terminal_process import TerminalProcess
from lattice.helper.terminal_verbs import Attaching
from tests.fakes.manual_clock import ManualClock

USER = "daemon"
SESSION = "a" * 32


class _Kernel(Kernel):
    """Gives nothing up: these are tests of words."""

    def set_capabilities(self, kept: object) -> None:
        assert kept == ()


def grant(user: str = USER, job_id: int = 42, started: int = 0) -> Grant:
    return Grant(
        id="0" * 32, act=Act.ATTACH, place="n1", subject="s", user=user, job_id=job_id,
        started=started, issued=0, expires=1,
    )  # fmt: skip


def question(*, tools: str = "", uncontained: bool = False) -> Enter:
    return Enter(SESSION, (), "xterm", 24, 80, tools, uncontained)


@pytest.fixture
def job(tmp_path: Path) -> Path:
    folder = tmp_path / "cgroup/freezer/slurm" / f"uid_{pwd.getpwnam(USER).pw_uid}" / "job_42"
    (folder / "step_0").mkdir(parents=True)
    return folder


@pytest.fixture
def attaching(tmp_path: Path) -> Iterator[Callable[..., Attaching]]:
    clock, before = ManualClock(), signal.getsignal(signal.SIGALRM)
    above = tmp_path / "run"
    above.mkdir(mode=0o700)

    def made(*, tools: bool = True) -> Attaching:
        kernel = _Kernel()
        return Attaching(
            kernel,
            "n1",
            HelperSessions(above / "sessions"),
            TerminalProcess(kernel, clock, HelperJournal(clock), HolderTimes()),
            control_groups=tmp_path / "cgroup",
            tools=tools,
        )

    yield made
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


Made = Callable[..., Attaching]


def refused(asked: tuple[Answer, object]) -> tuple[Outcome, str]:
    answer, passed = asked
    assert passed == ()
    return answer.outcome, answer.message


def test_a_job_that_is_not_here(attaching: Made) -> None:
    assert refused(attaching().enter(grant(), question(), ())) == (
        Outcome.FAILED,
        "Job 42 has nothing of yours running on n1.",
    )


@pytest.mark.spec("ATTACH-1")
def test_a_cluster_without_a_step_to_join_says_what_is_lost(attaching: Made, job: Path) -> None:
    outcome, words = refused(attaching().enter(grant(), question(), ()))
    assert outcome is Outcome.FAILED
    for lost in ("PrologFlags=Contain", "not be counted", "its limits", "not end with it."):
        assert lost in words
    # If the site wants it all the same, it is only that nothing runs in it.
    outcome, words = refused(attaching().enter(grant(), question(uncontained=True), ()))
    assert words.startswith("Job 42 has no process of yours on this node")
    (job / "step_extern").mkdir()
    outcome, words = refused(attaching().enter(grant(), question(), ()))
    assert words.startswith("Job 42 has no process of yours on this node")


def test_an_attempt_that_is_over(attaching: Made, job: Path) -> None:
    (job / "step_extern").mkdir()
    later = int(time.time()) + 60
    assert refused(attaching().enter(grant(started=later), question(), ())) == (
        Outcome.FAILED,
        "Job 42 was started again meanwhile: ask anew.",
    )


@pytest.mark.threat("hostile-image")
def test_a_site_without_tools(attaching: Made, job: Path) -> None:
    asked = attaching(tools=False).enter(grant(), question(tools="/home/a.squashfs"), ())
    assert refused(asked) == (Outcome.FAILED, "This site mounts no images of tools.")


@pytest.mark.spec("AUTH-9")
def test_root_and_strangers_have_no_job(attaching: Made) -> None:
    for user in ("root", "nobody-of-that-name", ""):
        for asked in (
            attaching().enter(grant(user), question(), ()),
            attaching().rejoin(grant(user), Rejoin(SESSION), ()),
        ):
            assert refused(asked)[0] is Outcome.ACCOUNT_REFUSED
    assert refused(attaching().enter(grant(), question(), (0,)))[0] is Outcome.BAD_QUESTION
    assert refused(attaching().enter(grant(job_id=0), question(), ()))[0] is Outcome.BAD_QUESTION


def test_a_session_that_is_not_there(attaching: Made) -> None:
    assert refused(attaching().rejoin(grant(), Rejoin(SESSION), ())) == (
        Outcome.FAILED,
        "There is no such session on this node: it is over, or was away for too long.",
    )
