"""A PyTorch job of four ranks of which one sleeps in its data loader: diag says so, and who."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from lab.laboratory import Lab
from tests.e2e.diagnosed import line, page, sick
from tests.e2e.people import Person
from tests.e2e.topped import debugged, measured_top
from tests.eventually import eventually

pytestmark = [pytest.mark.lab, pytest.mark.long, pytest.mark.timeout(240)]

T = TypeVar("T")
TORCH = Path("/usr/lib/python3/dist-packages/torch")
RANKS, SLEEPER = 4, 3
WITHIN_S, PAUSE_S = 20.0, 2.5
_SLEEPS = "                time.sleep(0.2)"
_MEETS = "    dist.all_reduce(total)"
LOADER = f"""\
import os, time
import torch
from torch.utils.data import Dataset

class Numbers(Dataset):
    def __init__(self, rank):
        self.rank = rank
    def __len__(self):
        return 6
    def __getitem__(self, place):
        if place == 3 and self.rank == {SLEEPER}:
            while not os.path.exists(os.path.expanduser("~/torch-go")):
{_SLEEPS}
        return torch.ones(4)
"""
TRAIN = f"""\
import os
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader
from loader import Numbers

torch.set_num_threads(1)
rank = int(os.environ["SLURM_PROCID"])
dist.init_process_group("gloo", init_method="tcp://n1:29512", rank=rank, world_size={RANKS})
total = torch.zeros(4)
for batch in DataLoader(Numbers(rank), batch_size=1):
    total += batch.sum(0)
{_MEETS}
print(f"rank {{rank}} has ended with {{total[0]:.0f}}", flush=True)
dist.barrier()
"""


def _line_of(program: str, text: str) -> int:
    return program.splitlines().index(text) + 1


@pytest.fixture
def job(lab: Lab, alice: Person) -> Iterator[int]:
    assert TORCH.exists(), "PyTorch is missing: `scripts/setup long` installs it"
    home = lab.layout.home / "alice"
    (home / "loader.py").write_text(LOADER)
    (home / "train.py").write_text(TRAIN)
    (home / "torch-go").unlink(missing_ok=True)
    work = f"srun -n{RANKS} /usr/bin/python3 -u ~/train.py"
    wanted = ("-w", "n[1-2]", f"-n{RANKS}", "--ntasks-per-node=2", "--mem=1500M")
    lab.jobs.cancel_all()
    with debugged(lab, alice, *wanted, wrap=work) as number:
        yield number


def _timed(ask: Callable[[], T]) -> tuple[T, float]:
    began_s = time.monotonic()
    answer = ask()
    return answer, time.monotonic() - began_s


def _next_page(alice: Person, job: int) -> dict[str, Any]:
    """Some seconds later: thirty a minute are allowed."""
    time.sleep(PAUSE_S)
    return page(alice, job)


def _name_a_rank_that_sleeps(lab: Lab, alice: Person, bob: Person, job: int) -> float:
    """The seconds of the slower of both answers."""
    measured_top(alice, job)
    eventually(lambda: sick(_next_page(alice, job)), lambda found: "job_hang" in found)

    answer, page_s = _timed(lambda: page(alice, job))
    assert sick(answer) == {"job_hang": {"n2"}}
    hang = line(answer, "job_hang")
    assert [each["rank"] for each in hang["subjects"]] == [SLEEPER]
    assert f"rank {SLEEPER} on n2" in hang["evidence"]
    assert "--stacks" in hang["remedy"]

    told, stacks_s = _timed(lambda: alice.asks("diag", str(job), "--stacks"))
    assert told["troubles"] in (None, [])
    (odd,) = [each for each in told["groups"] if each["is_odd"]]
    (rest,) = [each for each in told["groups"] if not each["is_odd"]]
    asleep, meet = _line_of(LOADER, _SLEEPS), _line_of(TRAIN, _MEETS)
    assert odd["words"] == f"rank {SLEEPER}: Numbers.__getitem__, loader.py:{asleep}"
    assert {each["node"] for each in odd["subjects"]} == {"n2"}
    assert rest["words"] == f"ranks 0-2: all_reduce, train.py:{meet}"
    assert bob.tries("diag", str(job), "--stacks").code == 102

    (lab.layout.home / "alice" / "torch-go").touch()
    lab.wait_job_state(job, "COMPLETED", 120)
    ended = eventually(
        lambda: alice.tries("logs", str(job)).out, lambda out: out.count("has ended") == RANKS
    )
    assert {f"rank {rank} has ended" in ended for rank in range(RANKS)} == {True}
    return max(page_s, stacks_s)


@pytest.mark.spec("DIAG-1", "DIAG-6")
def test_a_rank_that_sleeps_in_its_loader_is_named_with_its_line_and_goes_on_when_let(
    lab: Lab, alice: Person, bob: Person, job: int
) -> None:
    _name_a_rank_that_sleeps(lab, alice, bob, job)


@pytest.mark.timing
@pytest.mark.spec("DIAG-1", "DIAG-6")
def test_a_rank_that_sleeps_in_its_loader_is_named_within_twenty_seconds(
    lab: Lab, alice: Person, bob: Person, job: int
) -> None:
    assert _name_a_rank_that_sleeps(lab, alice, bob, job) < WITHIN_S
