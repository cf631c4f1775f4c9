"""Faults made for real: the right rule finds each, names the right node, and no other cries."""

from __future__ import annotations

from typing import Any

import pytest

from lab.laboratory import Lab
from tests.e2e.diagnosed import PAUSE_S, healthy, page, sick, told
from tests.e2e.people import Person
from tests.e2e.topped import WORKS, debugged, measured_top
from tests.eventually import eventually

pytestmark = pytest.mark.lab


@pytest.mark.spec("DIAG-1")
def test_a_healthy_job_and_whose_page_it_is(lab: Lab, alice: Person, bob: Person) -> None:
    work = "srun -n2 -N2 sh -c 'while :; do echo on; sleep 0.2; done'"
    with healthy(lab, alice, "-w", "n[1-2]", wrap=work) as job:
        answer = page(alice, job)
        assert answer["covered"] == {"measured": 2, "nodes": 2}
        assert answer["verdict"] in {"ok", "unknown"}
        rules = {each["rule"] for each in answer["findings"]}
        assert len(rules) >= 8, rules
        shown = alice.tries("diag", str(job))
        assert shown.code == 0
        assert shown.out
        refused = {
            (said.code, said.err.replace(str(name), "ID"))
            for name in (job, 999_999)
            for said in [bob.tries("diag", str(name))]
        }
        assert len(refused) == 1


@pytest.mark.story
@pytest.mark.spec("DIAG-1", "DIAG-5")
def test_an_oom_kill(lab: Lab, alice: Person) -> None:
    eater = "/usr/bin/python3 -c 'x = bytearray(400 << 20)'"
    work = f"for i in 1 2 3 4 5 6 7 8 9; do echo on; sleep 1; done; {eater}; sleep 300"
    with debugged(lab, alice, "-w", "n1", "--mem=150M", wrap=work) as job:
        found = told(alice, job, "oom_kill", 60)
        assert found == {"oom_kill": {"n1"}}
        (line,) = [each for each in page(alice, job)["findings"] if each["rule"] == "oom_kill"]
        assert "--mem" in line["remedy"]
        assert alice.tries("diag", str(job), "--exit-status").code in {110, 111}


@pytest.mark.spec("DIAG-1")
def test_memory_near_its_limit(lab: Lab, alice: Person) -> None:
    holder = (
        "import time; x = bytearray(190 << 20)\nwhile True: time.sleep(1); print(1, flush=True)"
    )
    work = f"/usr/bin/python3 -c '{holder}'"
    with debugged(lab, alice, "-w", "n1", "--mem=200M", wrap=work) as job:
        assert told(alice, job, "memory_limit") == {"memory_limit": {"n1"}}


@pytest.mark.spec("DIAG-1", "SRC-2")
def test_an_agent_that_does_not_answer_is_unknown_and_not_well(lab: Lab, alice: Person) -> None:
    with debugged(lab, alice, "-w", "n[1-2]", wrap=f"srun sh -c '{WORKS}'") as job:
        measured_top(alice, job, "--per-node", node="n2")
        lab.node("n2").agent.freeze()
        try:
            answer = page(alice, job)
            assert answer["covered"]["measured"] < 2
            assert answer["verdict"] != "ok"
        finally:
            lab.node("n2").agent.thaw()


_RECEIVES = (
    'import socket; d = socket.create_server(("", 47014)); p, _ = d.accept()\n'
    "while p.recv(1 << 16): pass"
)
_SENDS = (
    'import socket, time; time.sleep(3); p = socket.create_connection(("n2", 47014))\n'
    'while True: p.sendall(b"x" * 100000); time.sleep(0.1); print(1)'
)
_MOST_BYTES_S = 1e6


@pytest.mark.spec("DIAG-2")
def test_what_two_nodes_send_each_other(lab: Lab, alice: Person) -> None:
    """At most a megabyte a second, from n1 to n2."""
    python = "/usr/bin/python3 -u -c"
    work = (
        f"srun -N1 -n1 -w n2 --overlap {python} '{_RECEIVES}' & "
        f"srun -N1 -n1 -w n1 --overlap {python} '{_SENDS}' & wait"
    )
    with debugged(lab, alice, "-w", "n[1-2]", wrap=work) as job:

        def between() -> dict[str, Any]:
            found = page(alice, job)["findings"]
            (line,) = [each for each in found if each["rule"] == "between_nodes"]
            return dict(line)

        line = eventually(
            between,
            lambda found: (
                (found["measured"] or 0) > _MOST_BYTES_S / 4
                and "since the job began" not in found["evidence"]
            ),
            pause_s=PAUSE_S,
        )
        assert line["measured"] < _MOST_BYTES_S * 1.1
        assert line["evidence"].startswith("n1 to n2 ")
        assert "(by TCP; eBPF" in line["evidence"]
        assert "n1 to n2 " in alice.tries("diag", str(job), "--network").out


@pytest.mark.spec("DIAG-1", "DIAG-2")
def test_packets_that_are_sent_again(lab: Lab, alice: Person) -> None:
    """A tenth of what n1 sends to n2 is dropped on its way."""
    receive = (
        "import socket; d = socket.create_server((chr(0) * 0, 47012)); p, _ = d.accept()\n"
        "while p.recv(1 << 16): pass"
    )
    send = (
        'import socket, time; time.sleep(3); p = socket.create_connection(("n2", 47012))\n'
        'while True: p.sendall(b"x" * 100000); time.sleep(0.1); print(1, flush=True)'
    )
    work = (
        f"srun -N1 -n1 -w n2 --overlap /usr/bin/python3 -c '{receive}' & "
        f"srun -N1 -n1 -w n1 --overlap /usr/bin/python3 -c '{send}' & wait"
    )
    node = lab.node("n2")
    with debugged(lab, alice, "-w", "n[1-2]", wrap=work) as job:
        measured_top(alice, job, "--per-node", node="n2")
        assert "retransmits" not in sick(page(alice, job))
        rules = (
            "add table inet drops; add chain inet drops in { type filter hook input priority 0; }"
        )
        node.run(["nft", rules])
        node.run(["nft", "add rule inet drops in tcp dport 47012 numgen random mod 10 0 drop"])
        try:
            found = told(alice, job, "retransmits", 60)
            assert found["retransmits"] == {"n1"}
        finally:
            node.run(["nft", "delete table inet drops"], check=False)


@pytest.mark.story
@pytest.mark.spec("DIAG-6")
def test_the_stacks_of_all_ranks_in_one_picture(lab: Lab, alice: Person, bob: Person) -> None:
    """One of four sleeps somewhere else; it is named with its line, and goes on unharmed."""
    program = (
        "import os, time\n"
        "def load():\n"
        '    while not os.path.exists(os.path.expanduser("~/stacks-go")): time.sleep(0.1)\n'
        "def train():\n"
        '    while not os.path.exists(os.path.expanduser("~/stacks-go")): time.sleep(0.1)\n'
        'load() if os.environ["SLURM_PROCID"] == "3" else train()\n'
        'print("done", os.environ["SLURM_PROCID"], flush=True)\n'
    )
    home = lab.layout.home / "alice"
    (home / "stacked.py").write_text(program)
    (home / "stacks-go").unlink(missing_ok=True)
    with debugged(
        lab, alice, "-w", "n[1-2]", "-n4", wrap="srun -n4 /usr/bin/python3 ~/stacked.py"
    ) as job:
        measured_top(alice, job)
        answer = eventually(
            lambda: alice.asks("diag", str(job), "--stacks"),
            lambda seen: sum(len(each["ranks"]) for each in seen["groups"]) == 4,
        )
        (odd,) = [each for each in answer["groups"] if each["is_odd"]]
        assert odd["ranks"] == [3]
        assert bob.tries("diag", str(job), "--stacks").code == 102
        (home / "stacks-go").touch()
        lab.wait_job_state(job, "COMPLETED")
        said = alice.tries("logs", str(job))
        assert said.out.count("done") == 4
