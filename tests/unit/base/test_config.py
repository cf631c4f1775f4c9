"""Reading configuration files: each kind of value, and every problem at its place, at once."""

# ruff: noqa: RUF009 - `setting` declares a field, as `dataclasses.field` does.
from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lattice.base.config import ConfigReport, load, refused
from lattice.base.errors import ConfigurationError, status_of
from lattice.base.setting import Secret, Unread, required, setting


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True)
class Pair:
    left: int
    right: int

    @classmethod
    def parse(cls, text: str) -> Pair:
        left, comma, right = text.partition(",")
        if not comma or not (left + right).isdigit():
            raise ValueError(f"must be two numbers, not {text!r}")
        return cls(int(left), int(right))


@dataclass(frozen=True, kw_only=True)
class Entry:
    name: str = required("A name.")
    colour: Colour = setting(Colour.RED, "A colour.")


@dataclass(frozen=True, kw_only=True)
class Inner:
    word: str = setting("none", "A word.", env="TEST_WORD")
    count: int = setting(1, "A count.", least=0, most=10, env="TEST_COUNT")
    ratio: float = setting(0.5, "A ratio.")
    on: bool = setting(False, "A switch.")
    file: Path | None = setting(None, "A file.")
    pair: Pair = setting(Pair(1, 2), "A pair.")
    key: Secret | None = setting(None, "A secret.", env="TEST_KEY")


@dataclass(frozen=True, kw_only=True)
class Whole:
    inner: Inner = setting(Inner(), "A section.", alias="within")
    entries: tuple[Entry, ...] = setting((), "A list.")
    names: Mapping[str, str] = setting({}, "A map.")
    limits: Mapping[str, Entry] = setting({}, "A map of sections.")
    old: Unread = setting(Unread(), "Not read.")
    note: str = field(default="no key")


@pytest.fixture
def read(tmp_path: Path) -> Any:
    def _read(text: str | bytes, **environ: str) -> tuple[Whole, ConfigReport]:
        file = tmp_path / "c.yaml"
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        return load(Whole, file, environ)

    return _read


def told(read: Any, text: str | bytes, **environ: str) -> list[str]:
    """The problems, without the folder."""
    try:
        _, report = read(text, **environ)
    except ConfigurationError as error:
        problems = error.problems
    else:
        problems = report.problems
    return [re.sub(r"^\S*/c\.yaml", "c.yaml", each) for each in problems]


@pytest.mark.spec("OPS-7")
def test_every_kind_of_value(read: Any, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("s3cret\n")
    config, report = read(
        """
inner:
  word: no            # a word, whatever YAML 1.1 makes of it
  count: 7
  ratio: 3
  on: true
  file: here/it.pem
  pair: 3,4
  key_file: key
entries:
  - {name: 12:30, colour: blue}
  - name: "x"
names: {a: b, 1: 010}
limits: {x: {name: y}}
old: {any: [thing, 1, {deep: er}]}
"""
    )
    assert report.problems == ()
    inner = config.inner
    assert (inner.word, inner.count, inner.ratio, inner.on) == ("no", 7, 3.0, True)
    assert inner.file == tmp_path / "here/it.pem"
    assert inner.pair == Pair(3, 4)
    assert inner.key is not None
    assert inner.key.reveal() == "s3cret"
    assert [(each.name, each.colour.value) for each in config.entries] == [
        ("12:30", "blue"),
        ("x", "red"),
    ]
    assert config.names == {"a": "b", "1": "010"}
    assert config.limits["x"].name == "y"
    assert config.old.present


def test_nothing_at_all_is_all_defaults(read: Any) -> None:
    for text in ("", "# only words\n", "---\n", "inner:\nentries:\nold: {}\n", "\ufeffinner: {}"):
        config, report = read(text)
        assert report.problems == ()
        assert config.inner == Inner()


PROBLEMS: dict[str, tuple[str, list[str]]] = {
    "unknown key": (
        "inner:\n  wrod: x\n",
        ["c.yaml:2: inner.wrod: is not known here; did you mean word?"],
    ),
    "unknown section": ("zzz: 1\n", ["c.yaml:1: zzz: is not known here"]),
    "unknown, unprintable": (
        '"in\\u001b[31mner": 1\n',
        ["c.yaml:1: in\\x1b[31mner: is not known here; did you mean inner?"],
    ),
    "twice": (
        "inner:\n  word: a\n  count: 1\n  word: b\n",
        ["c.yaml:4: inner.word: stands twice, first in line 2 (column 3)"],
    ),
    "twice where nothing is read": (
        "old:\n  a: 1\n  a: 2\n",
        ["c.yaml:3: old.a: stands twice, first in line 2 (column 3)"],
    ),
    "two names of one": (
        "inner: {word: a}\nwithin: {word: b}\n",
        ["c.yaml:2: within: is another name of inner, which is set too"],
    ),
    "whole number": (
        "inner: {count: many}\n",
        ["c.yaml:1: inner.count: must be a whole number, not 'many'"],
    ),
    "quoted number": (
        "inner: {count: '3'}\n",
        ["c.yaml:1: inner.count: must be a whole number, not the text '3'"],
    ),
    "float for int": (
        "inner: {count: 1.5}\n",
        ["c.yaml:1: inner.count: must be a whole number, not '1.5'"],
    ),
    "too small": ("inner: {count: -1}\n", ["c.yaml:1: inner.count: must be at least 0, not -1"]),
    "too large": ("inner: {count: 11}\n", ["c.yaml:1: inner.count: must be at most 10, not 11"]),
    "not finite": (
        "inner: {ratio: .inf}\n",
        ["c.yaml:1: inner.ratio: must be a number, not '.inf'"],
    ),
    "huge": ("inner: {ratio: 1e308}\n", ["c.yaml:1: inner.ratio: must be a number, not '1e308'"]),
    "yes": ("inner: {on: yes}\n", ["c.yaml:1: inner.on: must be true or false, not 'yes'"]),
    "parsed": ("inner: {pair: x}\n", ["c.yaml:1: inner.pair: must be two numbers, not 'x'"]),
    "choice": (
        "entries: [{name: a, colour: blu}]\n",
        ["c.yaml:1: entries[0].colour: must be red or blue, not 'blu'; did you mean blue?"],
    ),
    "missing": ("entries:\n  - colour: red\n", ["c.yaml:2: entries[0].name: is missing"]),
    "list for a section": (
        "inner: [1]\n",
        ["c.yaml:1: inner: must hold keys and values, not a list"],
    ),
    "word for a list": ("entries: x\n", ["c.yaml:1: entries: must be a list, not 'x'"]),
    "word for a map": ("names: x\n", ["c.yaml:1: names: must hold keys and values, not 'x'"]),
    "list for a word": ("inner: {word: [a]}\n", ["c.yaml:1: inner.word: must be text, not a list"]),
    "list at the top": ("- a\n", ["c.yaml: must hold keys and values, not a list"]),
    "tag": (
        "inner: {word: !!python/object/apply:os.system [x]}\n",
        [
            (
                "c.yaml:1: inner.word: the tag tag:yaml.org,2002:python/object/apply:os.system"
                " has no meaning here"
            ),
            "c.yaml:1: inner.word: must be text, not a list",
        ],
    ),
    "merge": (
        "inner: &a {word: x}\nold:\n  <<: *a\n",
        ["c.yaml:3: old: merge keys are not read here (column 3)"],
    ),
    "syntax": ("inner: {word: a\n", ["c.yaml:2:1: expected ',' or '}', but got '<stream end>'"]),
    "tab": (
        "inner:\n\tword: a\n",
        ["c.yaml:2:1: found character '\\t' that cannot start any token"],
    ),
    "two documents": ("a: 1\n---\nb: 1\n", ["c.yaml:2:1: but found another document"]),
    "empty secret path": (
        "inner: {key_file: ''}\n",
        ["c.yaml:1: inner.key_file: must be a path, not nothing"],
    ),
    "secret twice": (
        "inner: {key: a, key_file: b}\n",
        ["c.yaml:1: inner.key_file: can't be set together with key"],
    ),
}


@pytest.mark.spec("OPS-7")
@pytest.mark.parametrize("name", PROBLEMS)
def test_each_problem_says_where_and_what(name: str, read: Any) -> None:
    text, expected = PROBLEMS[name]
    assert told(read, text) == expected


@pytest.mark.spec("OPS-7")
def test_all_problems_at_once_in_the_order_of_the_file(read: Any) -> None:
    text = """\
inner:
  count: x
  wrod: y
entries:
  - colour: green
  - {name: a}
  - 7
names: [1]
bogus: 1
"""
    assert [each.partition(": ")[0] for each in told(read, text)] == [
        "c.yaml:2",
        "c.yaml:3",
        "c.yaml:5",
        "c.yaml:5",
        "c.yaml:7",
        "c.yaml:8",
        "c.yaml:9",
    ]


def test_a_broken_entry_keeps_its_place(read: Any) -> None:
    config, report = read("entries: [{colour: red}, {name: b}]\n")
    assert config.entries[1].name == "b"
    report.problem("entries[1].name", "is b")
    report.problem("entries[0].name", "is blank")
    assert [each.rpartition("/")[2] for each in report.problems] == [
        "c.yaml:1: entries[0].name: is missing",
        "c.yaml:1: entries[1].name: is b",
    ]


def test_what_rests_on_a_broken_value_is_not_judged(read: Any) -> None:
    _, report = read("inner: {count: x, word: a}\n")
    report.problem("inner.word", "does not go with inner.count", "inner.count")
    report.warning("inner.count", "is odd")
    assert len(report.problems) == 1
    report.problem("inner.word", "is bad by itself")
    report.warning("inner.ratio", "is odd")
    assert len(report.problems) == 2
    assert len(report.warnings) == 1


@pytest.mark.spec("OPS-7")
def test_the_environment_overrides_the_file(read: Any) -> None:
    config, report = read(
        "inner: {word: file, key: in-the-file}\n", TEST_WORD="env", TEST_COUNT="4", TEST_KEY="k"
    )
    assert report.problems == ()
    assert (config.inner.word, config.inner.count) == ("env", 4)
    assert config.inner.key == Secret("k")
    assert told(read, "", TEST_COUNT="lots") == [
        "environment TEST_COUNT: must be a whole number, not 'lots'"
    ]
    config, _ = read("", TEST_KEY="")
    assert config.inner.key == Secret(""), "set and empty is not the same as not set"


@pytest.mark.spec("OPS-7")
def test_an_empty_secret_is_not_the_same_as_none(read: Any) -> None:
    for text in ("inner: {key: ''}", "inner:\n  key:\n", "inner: {key: ~}"):
        config, _ = read(text)
        assert config.inner.key is not None, text


@pytest.mark.spec("OPS-7")
def test_a_secret_is_never_shown(read: Any, tmp_path: Path) -> None:
    (tmp_path / "bad").write_bytes(b"\xff\xfe-hush-\xff")
    for text in ("inner: {key: hush}", "inner: {key: [hush]}", "inner: {key_file: bad}"):
        config, report = read(text)
        shown = f"{config!r}{config}{report.problems}{refused(report)}"
        assert "hush" not in shown, text
    _, report = read("inner: {key_file: missing}")
    assert "missing can't be read: No such file" in report.problems[0]
    report.problem("inner.key", "is too short")
    assert len(report.problems) == 1


@pytest.mark.parametrize("letter", ["x", "é"])
def test_a_secret_file_that_is_too_large_is_refused(read: Any, tmp_path: Path, letter: str) -> None:
    whole = letter * (64 * 1024 // len(letter.encode()))
    (tmp_path / "key").write_text(whole + "\n")
    _, report = read("inner: {key_file: key}")
    assert report.problems == (
        f"{tmp_path}/c.yaml:1: inner.key_file: {tmp_path}/key is larger than 65536 bytes",
    )
    (tmp_path / "key").write_text(whole)
    config, report = read("inner: {key_file: key}")
    assert (config.inner.key, report.problems) == (Secret(whole), ())


def test_files_that_can_not_be_read(tmp_path: Path, read: Any) -> None:
    with pytest.raises(ConfigurationError) as missing:
        load(Whole, tmp_path / "missing.yaml", {})
    assert missing.value.problems == (
        f"{tmp_path}/missing.yaml: can't be read: No such file or directory",
    )
    assert status_of(missing.value).exit == 78
    with pytest.raises(ConfigurationError):
        load(Whole, tmp_path, {})
    assert told(read, b"a: 1\nb: \xff\n") == ["c.yaml:2: is not UTF-8 text"]
    assert told(read, "a: \x07") != []
    assert "larger" in told(read, "#" + "x" * (1 << 20))[0]


def test_bounds_against_files_made_to_burst(read: Any) -> None:
    assert "nested" in told(read, "a: " + "[" * 100_000)[0]
    assert "nested" in told(read, "old: " + "{a: " * 60 + "1" + "}" * 60)[0]
    bomb = "a: &a [x]\n" + "".join(
        f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]\n"
        for old, new in zip("abcdefgh", "bcdefghi", strict=True)
    )
    assert told(read, bomb) == ["c.yaml:9:12: holds too many aliases"]
    # Within the bound an alias is only a way of writing less, a loop included.
    config, report = read("entries: [&e {name: a}, *e]\nold: &o [*o]\n")
    assert report.problems == ()
    assert [each.name for each in config.entries] == ["a", "a"]


_words = st.sampled_from(
    ["inner", "entries", "names", "old", "word", "count", "key", "key_file", "name", "colour", "x"]
)
_values = st.recursive(
    st.one_of(st.text(max_size=6), st.integers(), st.booleans(), st.none(), st.floats()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(_words, inner, max_size=4)
    ),
    max_leaves=8,
)


@settings(suppress_health_check=list(HealthCheck))
@given(st.one_of(st.text(max_size=60), _values))
def test_any_file_is_read_or_refused_never_more(read: Any, content: object) -> None:
    import yaml

    text = content if isinstance(content, str) else yaml.safe_dump(content)
    try:
        config, report = read(text.encode("utf-8", "surrogatepass"))
    except ConfigurationError:
        return
    else:
        assert isinstance(config, Whole)
        assert all("c.yaml" in each for each in report.problems)
