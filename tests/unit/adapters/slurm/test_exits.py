"""Exit codes that slurmrestd keeps to itself are asked of sacct, once."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.adapters.slurm.exit_codes import ExitCodes, parse_exit_codes
from lattice.domain.allocation import ExitCode, State
from tests.fakes.cluster import allocation
from tests.fakes.recorded_slurm import RecordedCommands

SUBMITTED = datetime.fromtimestamp(1794708917, UTC)


@pytest.mark.spec("ALLOC-6")
async def test_a_failure_gets_the_code_sacct_knows_and_is_asked_once() -> None:
    commands = RecordedCommands()
    commands.exit_codes_text = "5|1794708917|3:0\n5|1700000000|1:0\nnonsense\n6|1794708917|0:9\n"
    over = {"submitted": SUBMITTED, "started": SUBMITTED}
    found = (
        allocation(5, "alice", "research", state=State.FAILED, **over),
        allocation(6, "alice", "research", state=State.CANCELLED, **over),
        allocation(7, "alice", "research", state=State.FAILED, **over),
        allocation(8, "alice", "research", state=State.RUNNING, **over),
        allocation(9, "alice", "research", state=State.FAILED, exit_code=ExitCode(4), **over),
    )
    exits = ExitCodes(commands)
    for _ in range(2):
        told = [each.exit_code for each in await exits.filled(found)]
        assert told == [ExitCode(3), ExitCode(0, 9), None, None, ExitCode(4)]
    assert commands.exit_codes_asked == [[5, 6, 7]]


async def test_without_sacct_the_code_stays_unknown_and_is_asked_for_again() -> None:
    commands = RecordedCommands()
    commands.missing = True
    failed = allocation(5, "alice", "research", state=State.FAILED, submitted=SUBMITTED)
    exits = ExitCodes(commands)
    assert (await exits.filled((failed,)))[0].exit_code is None
    commands.missing = False
    commands.exit_codes_text = "5|1794708917|3:0"
    assert (await exits.filled((failed,)))[0].exit_code == ExitCode(3)


@given(st.text())
def test_any_text_is_read_or_left_out(text: str) -> None:
    for (job, submitted), code in parse_exit_codes(text):
        assert job >= 0
        assert submitted >= 0
        assert 0 <= code.code <= 999


@pytest.mark.parametrize("sign", ["\r", "\v", "\x1c", "\x85", "\u2028"])
def test_only_a_line_feed_ends_a_line(sign: str) -> None:
    assert list(parse_exit_codes(f"error{sign}5|1794708917|3:0\n")) == []
