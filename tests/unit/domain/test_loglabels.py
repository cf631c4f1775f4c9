"""Labels of `srun --label`, and the sruns that write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.domain.loglabels import is_named, labelled_names, rank_of


@given(st.binary())
def test_any_bytes_have_a_rank_or_none(line: bytes) -> None:
    rank = rank_of(line)
    assert rank is None or line.lstrip(b" ").startswith(b"%d: " % rank)


@pytest.mark.spec("LOG-2")
@given(st.integers(1, 5), st.data())
def test_what_srun_writes_is_read_back(width: int, data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, 10**width - 1))
    text = data.draw(st.binary().filter(lambda each: b"\n" not in each))
    assert rank_of(b"%*d: %s\n" % (width, rank, text)) == rank


@pytest.mark.spec("LOG-2")
@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"3",
        b"3:",
        b"3:x",
        b": x",
        b"03: x",
        b"-3: x",
        b"+3: x",
        b"3 : x",
        b"\t3: x",
        b"x 3: y",
        b"P0 3: x",
        b"1234567890: x",
        b" " * 9 + b"3: x",
        "٣: x".encode(),
        b"slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED ***",
    ],
)
def test_what_is_no_label(line: bytes) -> None:
    assert rank_of(line) is None


@pytest.mark.spec("LOG-2")
@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("srun -l -o x prog", ("x",)),
        ("srun --label --output=x prog", ("x",)),
        ("srun --label --output x --error y prog", ("x", "y")),
        ("srun -o x -l prog", ("x",)),
        ("srun -n 4 -N2 -lox prog", ("x",)),
        ("srun -luo x prog", ("x",)),
        ("srun --ntasks 4 --exclusive -l -o x prog", ("x",)),
        ("srun -l prog", ()),
        ("srun -o x prog", ()),
        ("srun -o x prog -l", ()),
        ("srun -o x prog --label", ()),
        ("srun -o x -- prog --label", ()),
        ("srun -o x --overlap prog -l", ()),
        ("srun -o x --spank-thing prog -l", ()),
        ("srun -J -l -o x prog", ()),
        ("srun -o -l prog", ()),
        ("srun -Kl -o x prog", ()),
        ("srun -l -o x prog : -n2 other", ()),
        ("srun --label=no prog", ()),
        ("srun -o", ()),
        ("srun", ()),
        ("", ()),
    ],
)
def test_the_files_that_an_srun_labels(line: str, names: tuple[str, ...]) -> None:
    assert labelled_names(line.split(" ")) == names


@given(st.lists(st.text()))
def test_any_words_of_a_process(words: list[str]) -> None:
    assert set(labelled_names(words)) <= {
        word[cut:] for word in words for cut in range(len(word) + 1)
    } | {""}


@given(st.text(), st.text())
def test_any_name_and_path(path: str, name: str) -> None:
    is_named(path, name)


@pytest.mark.parametrize(
    ("path", "name", "named"),
    [
        ("/home/a/x.out", "x.out", True),
        ("/home/a/x.out", "/scratch/x.out", True),
        ("/home/a/t_7_0.out", "logs/t_%j_%2t.out", True),
        ("/home/a/50%.out", "50%%.out", True),
        ("/home/a/x+out", "x.out", False),
        ("/home/a/x.out", "y.out", False),
        ("/home/a/slurm-7.out", "t_%j.out", False),
        ("/home/a/x", "", False),
        ("/home/a/x", "/", False),
    ],
)
def test_a_file_and_what_an_option_calls_it(path: str, name: str, named: bool) -> None:
    assert is_named(path, name) is named
