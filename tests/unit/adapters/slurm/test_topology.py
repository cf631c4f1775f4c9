from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.adapters.slurm.topology import leaves, parse_topology
from lattice.domain.node import Switch, Topology

RECORDED = """\
SwitchName=s1 Level=0 LinkSpeed=1 Nodes=n1,n2
SwitchName=s2 Level=0 LinkSpeed=1 Nodes=n3,v1
SwitchName=root Level=1 LinkSpeed=1 Nodes=n[1-3],v1 Switches=s1,s2
"""


def test_the_switches_of_the_lab() -> None:
    topology = parse_topology(RECORDED)
    assert topology.switches == (
        Switch("s1", 0, ("n1", "n2")),
        Switch("s2", 0, ("n3", "v1")),
        Switch("root", 1, (), ("s1", "s2")),
    )
    assert leaves(topology) == {"n1": "s1", "n2": "s1", "n3": "s2", "v1": "s2"}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "No topology information available\n",
        "BlockName=b1 BlockIndex=0 Nodes=n[1-4]\n",
        "SwitchName=s1\n",
        "SwitchName=s1 Level=x Nodes=n1\n",
        "SwitchName=s Level=0 Nodes=n[1-\n",
        "SwitchName=s Level=0 Nodes=n[0-99999999999]\n",
        "SwitchName= Level=0 Nodes=n1\n",
    ],
)
def test_what_is_no_switch_is_left_out(text: str) -> None:
    assert parse_topology(text) == Topology()


@given(st.text(max_size=200))
def test_any_text_is_read(text: str) -> None:
    parse_topology(text)
    parse_topology(f"SwitchName={text} Level=0 Nodes={text}")
