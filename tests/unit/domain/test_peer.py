"""Names of peers: one spelling in, the same out, and nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.domain.peer import (
    BadName,
    PeerKind,
    checked_cluster,
    checked_name,
    peer_uri,
    read_uri,
    server_name,
)

NAMES = st.from_regex(r"\A[A-Za-z0-9][A-Za-z0-9._-]{0,62}\Z")
CLUSTERS = st.from_regex(r"\A[a-z0-9][a-z0-9-]{0,47}\Z")


@pytest.mark.spec("AUTH-9")
@given(CLUSTERS, st.sampled_from(PeerKind), NAMES)
def test_what_is_written_is_read(cluster: str, kind: PeerKind, name: str) -> None:
    assert read_uri(peer_uri(cluster, kind, name)) == (cluster, kind, name)


@pytest.mark.spec("AUTH-9")
@given(st.text(max_size=80))
def test_any_text_is_refused_or_is_exactly_what_would_be_written(text: str) -> None:
    for uri in (text, f"lattice://c/node/{text}", f"lattice://{text}/node/n1"):
        try:
            cluster, kind, name = read_uri(uri)
        except BadName:
            continue
        assert peer_uri(cluster, kind, name) == uri


@pytest.mark.parametrize(
    "uri",
    [
        "lattice://c/node/n1/",
        "lattice://c/node/n1\n",
        "lattice://c/node/../replica/r1",
        "lattice://c/node/%6e1",
        "lattice://C/node/n1",
        "LATTICE://c/node/n1",
        "lattice://c/admin/n1",
        "lattice://c:1/node/n1",
        "lattice://u@c/node/n1",
        "lattice://c/node/n1?x",
        "lattice://c/node/",
        "lattice://c/node/n\u0661",
        "spiffe://c/node/n1",
    ],
)
def test_other_spellings_are_refused(uri: str) -> None:
    with pytest.raises(BadName):
        read_uri(uri)


@pytest.mark.parametrize("name", ["", ".n", "-n", "a b", "n/1", "x" * 64, "n1\n"])
def test_names_that_no_certificate_can_carry(name: str) -> None:
    with pytest.raises(BadName):
        checked_name(name)


@pytest.mark.parametrize("cluster", ["", "A", "a.b", "a/b", "x" * 49])
def test_ids_that_no_cluster_has(cluster: str) -> None:
    with pytest.raises(BadName):
        checked_cluster(cluster)


def test_a_replica_has_a_name_of_its_own_below_that_of_all() -> None:
    assert server_name("c", "R1") == f"r1.{server_name('c')}"
