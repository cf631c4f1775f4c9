from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lattice.domain.nodeset import LIMIT, NodeSet


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", []),
        ("n1", ["n1"]),
        ("n[1-3]", ["n1", "n2", "n3"]),
        ("n[1-2,07-09]", ["n1", "n2", "n07", "n08", "n09"]),
        ("n[8-11]", ["n8", "n9", "n10", "n11"]),
        ("n[098-101]", ["n098", "n099", "n100", "n101"]),
        (
            "n[1-3,07-12],gpu-[a]x",
            [*(f"n{i}" for i in (1, 2, 3)), *(f"n{i:02}" for i in range(7, 13)), "gpu-ax"],
        ),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        ("a,b,a", ["a", "b"]),
        ("[1-2]", ["1", "2"]),
    ],
)
def test_slurm_s_notation_is_expanded_in_its_order(text: str, names: list[str]) -> None:
    assert list(NodeSet.parse(text)) == names


@pytest.mark.parametrize(
    ("names", "folded"),
    [
        (["n3", "n1", "n2"], "n[1-3]"),
        (["n1"], "n1"),
        (["n1", "n3"], "n[1,3]"),
        (["n08", "n09", "n10"], "n[08-10]"),
        (["n8", "n9", "n10"], "n[8-10]"),
        (["n9", "n08", "n09", "n10"], "n[9,08-10]"),
        (["login", "n1", "n2"], "login,n[1-2]"),
        (["r1n1", "r1n2", "r2n1"], "r1n[1-2],r2n1"),
        (["1", "2"], "[1-2]"),
    ],
)
def test_names_fold_to_the_usual_form(names: list[str], folded: str) -> None:
    assert NodeSet(names).fold() == folded


@pytest.mark.parametrize(
    "text",
    [
        "n[1-",
        "n]1[",
        "n[[1]]",
        "n[]",
        "n[3-1]",
        "n[1-2-3]",
        "n[a-c]",
        "a,,b",
        ",",
        "a b",
        "n\x1b[1]",
        "n[1,]",
        "a\nb",
    ],
)
def test_what_is_malformed_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        NodeSet.parse(text)


@pytest.mark.parametrize(
    "text", ["n[0-9999999999]", "n[0-99999]x[0-99999]", "n[1-60000],m[1-60000]", "n[0-9]" * 30]
)
def test_a_list_beyond_the_limit_is_refused_and_not_expanded(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        NodeSet.parse(text)


@pytest.mark.parametrize(
    "text",
    [
        f"n[{','.join(['0-99999'] * 2000)}]",
        "n" + "[0-99999]" * 2000,
        "n" * 60_000 + "[0-99999]",
        f"n[{'0' * 17}1-{'0' * 13}99999]{'x' * 60_000}",
    ],
    ids=["ranges", "groups", "prefix", "suffix"],
)
def test_a_short_text_takes_little_memory(text: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="node"):
            NodeSet.parse(text)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 64 * 1024 * 1024


def test_the_limit_itself_is_allowed() -> None:
    assert len(NodeSet.parse(f"n[1-{LIMIT}]")) == LIMIT


def test_sets_combine_like_sets() -> None:
    left, right = NodeSet.parse("n[1-3]"), NodeSet.parse("n[3-4]")
    assert left | right == NodeSet.parse("n[1-4]")
    assert left & right == NodeSet(["n3"])
    assert left - right == NodeSet.parse("n[1-2]")
    assert "n2" in left
    assert "n4" not in left
    assert hash(left) == hash(NodeSet(["n3", "n2", "n1"]))
    assert left != ["n1", "n2", "n3"]
    assert str(left) == "n[1-3]"
    assert repr(left) == "NodeSet('n[1-3]')"


NAMES = st.text(
    st.characters(exclude_characters=",[]", exclude_categories=("Z", "C")), min_size=1, max_size=12
).filter(lambda name: not any(character.isspace() for character in name))
NUMBERED = st.builds(
    lambda prefix, number, width, suffix: f"{prefix}{number:0{width}}{suffix}",
    st.sampled_from(["", "n", "gpu-", "r1n"]),
    st.integers(0, 120),
    st.integers(1, 4),
    st.sampled_from(["", "x", "-ib"]),
)


@given(st.sets(st.one_of(NUMBERED, NAMES), max_size=80))
@example({"n٣", "n4"})
def test_folding_loses_and_invents_no_node(names: set[str]) -> None:
    nodes = NodeSet(names)
    assert NodeSet.parse(nodes.fold()) == nodes


@given(st.sets(NUMBERED, max_size=40), st.sets(NUMBERED, max_size=40))
def test_parsing_a_join_is_the_union(left: set[str], right: set[str]) -> None:
    both = ",".join(part for part in (NodeSet(left).fold(), NodeSet(right).fold()) if part)
    assert NodeSet.parse(both) == NodeSet(left) | NodeSet(right)


@given(st.one_of(st.text(max_size=60), st.text("n[]-,0123456789ax", max_size=60)))
def test_any_text_is_parsed_within_the_limit_or_refused(text: str) -> None:
    try:
        nodes = NodeSet.parse(text, limit=5000)
    except ValueError:
        return
    assert len(nodes) <= 5000
    assert NodeSet.parse(nodes.fold()) == nodes
