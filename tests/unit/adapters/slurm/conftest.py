from __future__ import annotations

import pytest

from lattice.adapters.slurm.tenancy import Placing
from lattice.domain.accounts import Account, AccountTree
from lattice.domain.vcluster import Vcluster, VclusterKind, Vclusters
from tests.fakes.manual_clock import ManualClock
from tests.fakes.recorded_slurm import RecordedCommands, RecordedSlurm


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def vclusters() -> Vclusters:
    return Vclusters((Vcluster("train", VclusterKind.HPC, "main"),))


@pytest.fixture
def placing(vclusters: Vclusters) -> Placing:
    tree = AccountTree.of([Account("physics", "root"), Account("research", "physics")])
    return Placing("lab", tree, vclusters)


@pytest.fixture
def slurm() -> RecordedSlurm:
    return RecordedSlurm()


@pytest.fixture
def commands() -> RecordedCommands:
    return RecordedCommands(
        "SwitchName=s1 Level=0 LinkSpeed=1 Nodes=n[1-2]\n"
        "SwitchName=s2 Level=0 LinkSpeed=1 Nodes=n3\n"
        "SwitchName=top Level=1 LinkSpeed=1 Nodes=n[1-3] Switches=s[1-2]\n",
        "7|lab|research|alice\n8|lab|theory|bob\n9|lab|research|bob\n",
    )
