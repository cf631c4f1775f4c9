"""SPIFFE IDs: which name a node, and which addresses a Workload API may have."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.domain.peer import BadName
from lattice.domain.spiffe import (
    BadTemplate,
    NodeIds,
    NodePath,
    checked_domain,
    is_spiffe,
    split_id,
    workload_address,
)

IDS = NodeIds("example.org", NodePath())


@pytest.mark.spec("AUTH-9")
def test_an_id_of_the_domain_with_the_path_names_a_node() -> None:
    assert IDS.node_of("spiffe://example.org/lattice/node/n1") == "n1"
    assert NodePath("/hpc/{node}/agent").node_of("/hpc/nid-0.1/agent") == "nid-0.1"
    assert NodePath("/hpc/{node}/agent").of("n1") == "/hpc/n1/agent"


@pytest.mark.spec("AUTH-9")
@pytest.mark.threat("spiffe-authority")
@pytest.mark.parametrize(
    "spiffe_id",
    [
        "spiffe://other.org/lattice/node/n1",
        "spiffe://EXAMPLE.org/lattice/node/n1",
        "spiffe://example.org:443/lattice/node/n1",
        "spiffe://user@example.org/lattice/node/n1",
        "SPIFFE://example.org/lattice/node/n1",
        "spiffe://example.org/lattice/node/",
        "spiffe://example.org/lattice/node/n1/",
        "spiffe://example.org/lattice/node/n1/x",
        "spiffe://example.org/lattice/node/n1?x",
        "spiffe://example.org/lattice/node/%6e1",
        "spiffe://example.org/lattice/node/..",
        "spiffe://example.org/Lattice/node/n1",
        "spiffe://example.org//lattice/node/n1",
        "spiffe://example.org",
        "https://example.org/lattice/node/n1",
        "spiffe:/example.org/lattice/node/n1",
        "",
    ],
)
def test_every_other_spelling_is_refused(spiffe_id: str) -> None:
    with pytest.raises(BadName):
        IDS.node_of(spiffe_id)


@given(st.text(max_size=60))
def test_no_path_names_two_nodes(text: str) -> None:
    path = NodePath("/a/{node}/b")
    try:
        node = path.node_of(text)
    except BadName:
        return
    assert path.of(node) == text


@pytest.mark.parametrize(
    "template",
    [
        "",
        "/all",
        "/{node}/{node}",
        "x/{node}",
        "/a//{node}",
        "/../{node}",
        "/{node}/",
        "/a b/{node}",
    ],
)
def test_a_template_that_fits_no_id_is_refused(template: str) -> None:
    with pytest.raises(BadTemplate):
        NodePath(template)


def test_a_trust_domain_is_in_small_letters() -> None:
    assert checked_domain("prod.example-1.org") == "prod.example-1.org"
    for bad in ("", "Example.org", "a/b", "a:1", "x" * 256):
        with pytest.raises(BadTemplate):
            checked_domain(bad)


def test_a_uri_that_is_meant_as_a_spiffe_id_is_read_as_one() -> None:
    assert is_spiffe("SPIFFE:x")
    assert not is_spiffe("lattice://c/node/n1")
    assert split_id("spiffe://a.org/x/y") == ("a.org", "/x/y")


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("/run/spire/agent.sock", "unix:/run/spire/agent.sock"),
        ("unix:///run/spire/agent.sock", "unix:/run/spire/agent.sock"),
        ("unix:/run/spire/agent.sock", "unix:/run/spire/agent.sock"),
        ("tcp://127.0.0.1:8000", "127.0.0.1:8000"),
        ("tcp://[::1]:8000", "[::1]:8000"),
    ],
)
def test_an_address_of_a_workload_api(text: str, target: str) -> None:
    assert workload_address(text) == target


@pytest.mark.parametrize(
    "text",
    [
        "run/spire.sock",
        "unix:run/spire.sock",
        "unix://host/run/spire.sock",
        "tcp://127.0.0.1",
        "tcp://127.0.0.1:8000/foo",
        "tcp://localhost:8000",
        "tcp://127.0.0.1:99999",
        "https://127.0.0.1:8000",
        "unix:///run/spire.sock?x=1",
        "tcp://u@127.0.0.1:80",
    ],
)
def test_an_address_that_spiffe_does_not_define_is_refused(text: str) -> None:
    with pytest.raises(BadTemplate):
        workload_address(text)


def test_keys_do_not_cross_the_network() -> None:
    with pytest.raises(BadTemplate, match="plain text"):
        workload_address("tcp://10.0.0.1:8000")
