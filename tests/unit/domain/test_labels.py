"""Labels in a comment: what is written is read, and no stranger's comment is believed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.base.errors import UsageError
from lattice.domain.labels import Marks, check_labels, read_comment, write_comment

names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,10}", fullmatch=True)
values = st.text(max_size=20).filter(str.isprintable)


@given(st.dictionaries(names, values, max_size=4), st.sampled_from(["", "0f" * 16]))
def test_what_is_written_is_read(labels: dict[str, str], key: str) -> None:
    check_labels(labels)
    marks = Marks(labels, key)
    comment = write_comment(marks)
    assert read_comment(comment) == marks
    assert comment.isascii()
    assert comment.isprintable()
    assert bool(comment) == bool(labels or key)


@given(st.text() | st.text().map("lattice:".__add__))
def test_any_comment_reads_as_something_harmless(comment: str) -> None:
    marks = read_comment(comment)
    assert all(isinstance(each, str) for each in (*marks.labels.values(), marks.key))


@pytest.mark.parametrize("comment", ["lattice:[]", "lattice:{}", "lattice:{", "", "lattice:1"])
def test_no_marks(comment: str) -> None:
    assert read_comment(comment) == Marks()


@pytest.mark.parametrize(
    "labels", [{"": "x"}, {"-a": "x"}, {"a b": "x"}, {"a": "\n"}, {"a": "x" * 129}, {"ü": "x"}]
)
def test_labels_that_can_not_be_kept(labels: dict[str, str]) -> None:
    with pytest.raises(UsageError):
        check_labels(labels)


def test_too_much_for_a_comment() -> None:
    with pytest.raises(UsageError, match="too long together"):
        write_comment(Marks({f"label-{number}": "x" * 100 for number in range(20)}))
