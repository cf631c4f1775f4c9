"""What a person in a job's terminal sees when something breaks, and that hers is as it was."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.laboratory import Lab
from lab.screen import Screen
from lab.users import AGENT_USER
from tests.e2e.at_terminal import PROMPT, at, piped
from tests.e2e.people import Person
from tests.e2e.put_right import administrator, linked, put_right
from tests.eventually import eventually

pytestmark = [pytest.mark.lab, pytest.mark.timeout(240)]

_HERE = Path(__file__).parents[2]
_LINKED = "linked to"
_COUNT = "for i in $(seq 1 250); do echo line-$i; sleep 0.02; done; echo all-$((9*9))\n"


@pytest.fixture(scope="module")
def olga(lab: Lab) -> Person:
    return administrator(lab)


@pytest.fixture(scope="module")
def job(lab: Lab) -> Iterator[int]:
    """On n1, for all the stories that leave it running."""
    lab.jobs.cancel_all()
    number = lab.sbatch("alice", "-w", "n1", wrap="sleep 1200")
    lab.wait_job_state(number, "RUNNING")
    yield number
    lab.jobs.cancel_all()


@pytest.fixture(autouse=True)
def whole(lab: Lab, olga: Person) -> Iterator[None]:
    yield
    put_right(lab, olga)


def _leave(shown: Screen) -> None:
    """The shell is alive, ends as it is told to, and the terminal is as before."""
    shown.type("exit 5\n")
    assert shown.wait() == 5
    assert shown.modes_now == shown.modes


def _all_lines_once(shown: Screen) -> str:
    text = shown.until("all-81\r\n").string
    counts = {n: text.count(f"line-{n}\r\n") for n in range(21, 251)}
    assert set(counts.values()) == {1}, {n: count for n, count in counts.items() if count != 1}
    return text


@pytest.mark.story
@pytest.mark.spec("ATTACH-4")
def test_an_agent_that_is_killed_is_a_pause(lab: Lab, alice: Person, job: int) -> None:
    agent = lab.node("n1").agent
    with at(alice, "attach", str(job)) as shown:
        shown.until(PROMPT)
        shown.type(_COUNT)
        shown.until("line-20\r\n")
        agent.kill()
        time.sleep(1.5)
        agent.start()
        _all_lines_once(shown)
        _leave(shown)


def _kill_each_server(lab: Lab, alice: Person, job: int) -> float:
    """The longest pause until something was shown again."""
    pauses_s = []
    with at(alice, "attach", str(job)) as shown:
        shown.until(PROMPT)
        shown.type(_COUNT)
        shown.until("line-20\r\n")
        for server in lab.servers:
            # The client may be at either: one after the other, never both.
            server.process.kill()
            begun = time.monotonic()
            shown.until("line-[0-9]+\r\n")
            pauses_s.append(time.monotonic() - begun)
            server.start()
        shown.until("all-81")
        _leave(shown)
    return max(pauses_s)


@pytest.mark.spec("ATTACH-4")
def test_a_server_that_is_killed_is_a_pause(lab: Lab, alice: Person, job: int) -> None:
    _kill_each_server(lab, alice, job)


@pytest.mark.timing
@pytest.mark.spec("ATTACH-4")
def test_a_server_that_is_killed_is_a_pause_of_five_seconds_at_most(
    lab: Lab, alice: Person, job: int
) -> None:
    assert _kill_each_server(lab, alice, job) <= 5


@pytest.mark.spec("ATTACH-4")
def test_a_node_cut_off_for_a_while_is_a_pause(lab: Lab, alice: Person, job: int) -> None:
    with at(alice, "attach", str(job)) as shown:
        shown.until(PROMPT)
        shown.type(_COUNT)
        shown.until("line-20\r\n")
        lab.node("n1").cut_off()
        time.sleep(7)
        lab.node("n1").heal()
        _all_lines_once(shown)
        _leave(shown)


def _leave_a_frozen_agent(lab: Lab, alice: Person, job: int) -> float:
    """The seconds until it was told."""
    with at(alice, "attach", str(job)) as shown:
        shown.until(PROMPT)
        lab.node("n1").agent.freeze()
        begun = time.monotonic()
        shown.until(r"node n1 not answering since \d\d+ s")
        told_s = time.monotonic() - begun
        shown.type("\r~.")
        assert shown.wait() == 128 + signal.SIGHUP
        assert shown.modes_now == shown.modes
    return told_s


@pytest.mark.spec("ATTACH-3", "ATTACH-4")
def test_a_frozen_agent_is_told_of_and_one_can_leave(lab: Lab, alice: Person, job: int) -> None:
    _leave_a_frozen_agent(lab, alice, job)


@pytest.mark.timing
@pytest.mark.spec("ATTACH-3", "ATTACH-4")
def test_a_frozen_agent_is_told_of_within_twenty_seconds(lab: Lab, alice: Person, job: int) -> None:
    assert _leave_a_frozen_agent(lab, alice, job) <= 20


@pytest.mark.spec("ATTACH-4", "AUTH-9")
def test_a_certificate_that_changes_is_not_noticed(lab: Lab, alice: Person, job: int) -> None:
    """The link is made anew under the new one; the terminal goes on where it is."""
    agent = lab.node("n1").agent
    renewing = [sys.executable, "-m", "tests.e2e.renew_certificate"]
    with at(alice, "attach", str(job)) as shown:
        shown.until(PROMPT)
        shown.type(_COUNT)
        shown.until("line-20\r\n")
        told = agent.process.log_file.read_text().count(_LINKED)
        lab.node("n1").run(
            ["env", f"PYTHONPATH={_HERE}", *renewing, str(agent.folder / "state"), "n1"],
            user=AGENT_USER,
        )
        agent.process.signal(signal.SIGHUP)
        eventually(
            lambda: agent.process.log_file.read_text().count(_LINKED), lambda now: now > told
        )
        assert "---" not in _all_lines_once(shown), "nothing was to be told of"
        # And the next is entered under the new certificate.
        assert piped(alice, "attach", str(job), "--", "id", "-un").stdout == b"alice\n"
        _leave(shown)


def _cut_the_power_of_a_node(lab: Lab, alice: Person) -> float:
    """The seconds until it was told."""
    own = lab.sbatch("alice", "-w", "n2", "--no-requeue", wrap="sleep 600")
    lab.wait_job_state(own, "RUNNING")
    with at(alice, "attach", str(own)) as shown:
        shown.until(PROMPT)
        lab.node("n2").power_cut()
        begun = time.monotonic()
        shown.until("connection to node lost — attach session ended")
        told_s = time.monotonic() - begun
        assert shown.wait() == 75
        assert shown.modes_now == shown.modes
    last = alice.asks("sessions", "--all")["sessions"][0]
    assert (last["node"], last["reason"]) == ("n2", "node_unreachable")
    return told_s


@pytest.mark.spec("ATTACH-5")
@pytest.mark.long
def test_a_node_without_power_is_told(lab: Lab, alice: Person) -> None:
    _cut_the_power_of_a_node(lab, alice)


@pytest.mark.timing
@pytest.mark.spec("ATTACH-5")
@pytest.mark.long
def test_a_node_without_power_is_told_within_twenty_seconds(lab: Lab, alice: Person) -> None:
    assert _cut_the_power_of_a_node(lab, alice) <= 20


@pytest.mark.spec("OPS-1")
def test_an_etcd_leader_that_dies_is_not_noticed(lab: Lab, alice: Person, job: int) -> None:
    with at(alice, "attach", str(job)) as shown:
        shown.until(PROMPT)
        leader = lab.etcd.leader()
        assert leader is not None
        lab.etcd.members[leader].kill()
        asked = ("attach", str(job), "--", "echo", "new")
        eventually(lambda: piped(alice, *asked).stdout, lambda said: said == b"new\n")
        shown.type("echo still-$((6*7))\n")
        shown.until("still-42")
        assert "---" not in shown.text
        _leave(shown)


@pytest.mark.spec("ALLOC-7")
def test_without_slurm_a_running_job_is_entered_and_its_age_told(
    lab: Lab, alice: Person, job: int
) -> None:
    lab.slurm.ctld.stop()
    try:
        eventually(
            lambda: piped(alice, "attach", str(job), "--", "hostname"),
            lambda done: done.stdout == b"n1\n" and b"ago" in done.stderr,
        )
        unknown = piped(alice, "attach", "999999999", "--", "hostname")
        assert unknown.returncode == 75, unknown.stderr
    finally:
        lab.slurm.ctld.up()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.spec("ATTACH-3")
def test_a_client_that_is_killed_leaves_the_terminal_as_it_was(
    alice: Person, job: int, number: signal.Signals
) -> None:
    with at(alice, "attach", str(job)) as shown:
        shown.until(PROMPT)
        shown.type("vim -u NONE\n")
        shown.until("~")
        assert shown.modes_now != shown.modes
        shown.process.send_signal(number)
        code = shown.wait()
        assert code == (-number if number is signal.SIGKILL else 128 + number)
        eventually(lambda: shown.modes_now, lambda modes: modes == shown.modes)
        if number is not signal.SIGKILL:
            assert b"\x1b[?1049l" in shown.seen, "the screen before the program's is back"


@pytest.mark.long
@pytest.mark.spec("AUTH-8")
def test_a_sign_in_is_renewed_unseen(lab: Lab, alice: Person, job: int) -> None:
    lab.oidc.set_access_token_ttl(20)
    try:
        lab.log_in("alice")
        with at(alice, "attach", str(job), stored=True) as shown:
            shown.until(PROMPT)
            lab.oidc.set_access_token_ttl(600)
            time.sleep(23)
            shown.type("echo still-$((6*7))\n")
            assert "sign-in" not in shown.until("still-42").string
            _leave(shown)
    finally:
        lab.oidc.set_access_token_ttl(600)


@pytest.mark.spec("AUTH-8")
def test_a_sign_in_that_ends_is_told_before(lab: Lab, job: int) -> None:
    lab.oidc.set_access_token_ttl(10)
    try:
        alice = Person(lab, "alice").logged_in()
    finally:
        lab.oidc.set_access_token_ttl(600)
    with at(alice, "attach", str(job)) as shown:
        shown.until(r"your sign-in ends in \d+ s, and this session with it")
        assert shown.wait() == 77
        assert "your sign-in has ended" in shown.text
        assert "lattice login" in shown.text
        assert shown.modes_now == shown.modes


@pytest.mark.spec("ATTACH-6")
def test_a_preempted_job_ends_its_terminal_with_the_words(lab: Lab, alice: Person) -> None:
    own = lab.sbatch("alice", "-w", "n3", "--requeue", wrap="sleep 600")
    lab.wait_job_state(own, "RUNNING")
    with at(alice, "attach", str(own)) as shown:
        shown.until(PROMPT)
        lab.slurm.scontrol("requeue", str(own))
        words = (
            r"\[lattice\] Allocation preempted. Session suspended. "
            rf"Use 'lattice attach {own}' to reconnect after rescheduling."
        )
        shown.until(words)
        assert shown.wait() == 75
        assert shown.modes_now == shown.modes
    lab.jobs.cancel(own)


@pytest.mark.spec("ATTACH-1")
def test_a_full_disk_of_the_agent_is_not_felt(
    lab: Lab, alice: Person, job: int, olga: Person
) -> None:
    node = lab.node("n1")
    state = str(node.agent.folder / "state")
    node.agent.kill()
    node.run(["mount", "-t", "tmpfs", "-o", "size=2m,mode=0777", "tmpfs", state])
    try:
        node.agent.start()
        eventually(lambda: linked(olga), lambda seen: "n1" in seen)
        # With nothing kept it begins anew, and knows whom to believe a few seconds later.
        asked = ("attach", str(job), "--", "id", "-un")
        eventually(lambda: piped(alice, *asked).stdout, lambda said: said == b"alice\n")
        node.run(["sh", "-c", f"cat /dev/zero >{state}/filling"], check=False)
        with at(alice, "attach", str(job)) as shown:
            shown.until(PROMPT)
            shown.type(f"df {state} | tail -1 | wc -l; echo still-$((6*7))\n")
            shown.until("still-42")
            _leave(shown)
    finally:
        node.agent.kill()
        node.run(["umount", state])
        node.agent.start_anew()


def _type_beside_a_flood(lab: Lab, alice: Person, job: int) -> list[float]:
    """Beside 1 GB of output a minute on the same node."""
    pour = "while :; do head -c 1700000 /dev/zero | tr '\\0' x; sleep 0.1; done"
    flood = lab.sbatch("alice", "-w", "n1", "--mem=50", wrap=pour)
    lab.wait_job_state(flood, "RUNNING")
    took = []
    with at(alice, "attach", str(job)) as shown:
        shown.until(PROMPT)
        for number in range(30):
            begun = time.monotonic()
            shown.type(f"echo $(({number}+1000))\n")
            shown.until(rf"[\r\n]{number + 1000}\r\n")
            took.append(time.monotonic() - begun)
        _leave(shown)
    lab.jobs.cancel(flood)
    return took


@pytest.mark.spec("ATTACH-1")
def test_one_types_beside_a_flood_of_another_job(lab: Lab, alice: Person, job: int) -> None:
    _type_beside_a_flood(lab, alice, job)


@pytest.mark.timing
@pytest.mark.spec("ATTACH-1")
def test_beside_a_flood_of_another_job_what_is_typed_is_answered_within_a_second(
    lab: Lab, alice: Person, job: int
) -> None:
    took = _type_beside_a_flood(lab, alice, job)
    assert sorted(took)[-2] < 1, took
