"""The SDK's page shows programs; they are run here as they stand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lab.laboratory import Lab
from tests.e2e.people import Person
from tests.eventually import eventually

pytestmark = pytest.mark.lab

PAGE = Path(__file__).resolve().parents[2] / "docs" / "guide" / "sdk.md"
PROGRAMS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


@pytest.mark.story
@pytest.mark.spec("CLI-3")
def test_the_programs_of_the_page_run(quiet_lab: Lab, alice: Person) -> None:
    *about_jobs, about_logs, about_terminals = PROGRAMS
    assert len(about_jobs) == 2
    job = quiet_lab.sbatch("alice", wrap="echo written")
    quiet_lab.wait_job_state(job, "COMPLETED")
    eventually(lambda: alice.sees("history"), lambda seen: str(job) in seen)

    def said(program: str) -> list[str]:
        done = quiet_lab.run_as("alice", ["python", "-c", program], env=alice.bearer)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    for program in about_jobs:
        assert any(line.split()[0] == str(job) for line in said(program))
    shown = said(about_logs.replace("12345", str(job)))
    assert [line.split()[1:] for line in shown] == [["0", "written"]]
    job = quiet_lab.sbatch("alice", wrap="sleep 300")
    quiet_lab.wait_job_state(job, "RUNNING")
    # There is no GPU here to list.
    program = about_terminals.replace("12345", str(job)).replace('["nvidia-smi", "-L"]', '["id"]')
    assert said(program)[0].startswith("uid=3001(alice)")
    assert said(program)[-1] == "exit code 0"


@pytest.mark.story
@pytest.mark.spec("CLI-3")
def test_what_the_command_line_imports_holds_no_grpc_and_no_protobuf(
    quiet_lab: Lab, alice: Person
) -> None:
    program = (
        "import sys, lattice.cli.main, lattice.client\n"
        "from lattice.client import Client, SyncClient\n"
        "SyncClient.from_environment().allocations()\n"
        "print(sorted(set(sys.modules) & {'grpc', 'google.protobuf', 'lattice.wire'}))\n"
    )
    done = quiet_lab.run_as("alice", ["python", "-c", program], env=alice.bearer)
    assert done.stdout == "[]\n", done
