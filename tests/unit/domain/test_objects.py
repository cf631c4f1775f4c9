from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lattice.domain.objects import (
    LONGEST_KEY,
    LONGEST_PART,
    BadKeyPart,
    check_key,
    check_prefix,
    escaped,
    key_of,
    unescaped,
)

PARTS = st.text(min_size=1, max_size=40)
SAFE = set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.%")

HOSTILE = {
    "../": "%2E.%2F",
    "..": "%2E%2E",
    ".": "%2E",
    "...": "%2E.%2E",
    "../../etc/passwd": "%2E.%2F..%2Fetc%2Fpasswd",
    "%2e%2e%2f": "%252e%252e%252f",
    "%": "%25",
    "//": "%2F%2F",
    "/": "%2F",
    "a\0b": "a%00b",
    "two\nlines": "two%0Alines",
    "a\r": "a%0D",
    "end.": "end%2E",
    ".hidden": "%2Ehidden",
    "~root": "%7Eroot",
    "a b+c": "a%20b%2Bc",
    "a\\b": "a%5Cb",
    "\u0430dmin": "%D0%B0dmin",  # a Cyrillic letter that looks like an a
    "\uff0e\uff0e\uff0f": "%EF%BC%8E%EF%BC%8E%EF%BC%8F",  # wide dots and a wide slash
    "\u202eevil": "%E2%80%AEevil",
}


@pytest.mark.spec("LOG-1")
@pytest.mark.parametrize(("name", "part"), HOSTILE.items())
def test_a_hostile_name_is_a_harmless_part(name: str, part: str) -> None:
    assert escaped(name) == part
    assert unescaped(part) == name


@pytest.mark.spec("LOG-1")
@pytest.mark.parametrize("name", ["", "x" * 1_100, "/" * 67, "x" * (LONGEST_PART + 1), "\ud800"])
def test_what_can_be_no_part_is_refused(name: str) -> None:
    with pytest.raises(BadKeyPart):
        escaped(name)
    with pytest.raises(BadKeyPart):
        key_of("tenant", name)


def test_the_longest_part_is_one() -> None:
    assert escaped("x" * LONGEST_PART) == "x" * LONGEST_PART


@pytest.mark.spec("LOG-1")
def test_looks_are_not_kept_apart_by_case_or_form() -> None:
    names = ["e\u0301", "\u00e9", "admin", "\u0430dmin", "Admin", "a", "a.", ".a", "a/", "%61"]
    assert len({escaped(name) for name in names}) == len(names)


@pytest.mark.spec("LOG-1")
@given(PARTS)
@example("../")
@example("%2E")
def test_a_part_says_what_it_was_made_of(name: str) -> None:
    try:
        part = escaped(name)
    except BadKeyPart:
        return
    assert unescaped(part) == name
    assert set(part) <= SAFE
    assert not part.startswith(".")
    assert not part.endswith(".")


@pytest.mark.spec("LOG-1")
@given(st.lists(PARTS, min_size=2, max_size=8))
def test_a_key_never_leaves_its_prefix(names: list[str]) -> None:
    try:
        key = key_of("logs", "tenant-1", *names)
    except BadKeyPart:
        return
    assert key.startswith("logs/tenant-1/")
    parts = key.split("/")
    assert [unescaped(part) for part in parts] == ["logs", "tenant-1", *names]
    assert not {"", ".", ".."} & set(parts)
    check_key(key)
    for cut in range(len(key)):
        check_prefix(key[:cut])


@pytest.mark.spec("LOG-1")
@given(st.lists(PARTS, min_size=1, max_size=4), st.lists(PARTS, min_size=1, max_size=4))
def test_other_names_make_another_key(one: list[str], other: list[str]) -> None:
    try:
        assert (key_of(*one) == key_of(*other)) == (one == other)
    except BadKeyPart:
        return


@given(st.text(alphabet="ab./%2eEfF~ \n\0\u00fc-", max_size=30))
@example("a//b")
@example("%2e%2e%2f")
def test_only_what_was_made_of_parts_is_a_key(text: str) -> None:
    try:
        check_key(text)
    except BadKeyPart:
        return
    assert key_of(*map(unescaped, text.split("/"))) == text


def test_a_key_has_an_end() -> None:
    longest = "/".join(["x" * 99] * 9)
    assert len(longest) == LONGEST_KEY - 1
    check_key(longest)
    check_key(longest + "x")
    with pytest.raises(BadKeyPart):
        check_key(longest + "xx")
    with pytest.raises(BadKeyPart):
        key_of(*["x" * 150] * 7)
    with pytest.raises(BadKeyPart):
        key_of()
