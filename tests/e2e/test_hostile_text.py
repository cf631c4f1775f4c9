"""Names chosen to drive a terminal, a table or a parser stay what they are: text."""

from __future__ import annotations

import json
import unicodedata

import pytest

from lab.laboratory import Lab
from tests.e2e.people import Person
from tests.eventually import eventually

pytestmark = pytest.mark.lab

NAMES = (
    "\x1b]0;owned\x07title",
    "\x1b[2J\x1b[Hcleared",
    "two\nlines",
    "back\rforth",
    "<script>alert(1)</script>",
    "=cmd|' /C calc'!A0",
    "\u202egnp.exe",
    "\x9b31mred",
    "日本語の名前",
    "a" * 200,
)


@pytest.mark.story
@pytest.mark.spec("CLI-1")
def test_hostile_job_names_are_inert_wherever_they_are_shown(quiet_lab: Lab, alice: Person) -> None:
    jobs = {
        str(quiet_lab.sbatch("alice", "-H", f"--job-name={name}", wrap="true")): name
        for name in NAMES
    }
    answer = eventually(
        lambda: alice.asks("status"),
        lambda seen: jobs.keys() <= {each["id"] for each in seen["allocations"]},
    )
    told = {each["id"]: each["name"] for each in answer["allocations"]}
    for job, name in jobs.items():
        if name.isascii():
            assert told[job] == name
    lone = next(iter(jobs))
    for words in (
        ("status",),
        ("status", "-o", "wide"),
        ("status", "-o", "json"),
        ("status", "-o", "yaml"),
        ("status", lone),
        ("history",),
    ):
        out = alice.tries(*words).out
        unsafe = {
            character
            for character in out
            if unicodedata.category(character) in {"Cc", "Cf"} and character != "\n"
        }
        assert unsafe == set(), (words, unsafe)
    lines = alice.tries("status").out.splitlines()
    for job in jobs:
        assert sum(line.split()[:1] == [job] for line in lines) == 1, job


@pytest.mark.spec("CLI-1")
def test_json_gives_the_name_back_exactly(quiet_lab: Lab, alice: Person) -> None:
    name = "\x1b[31m\n\u202e"
    job = quiet_lab.sbatch("alice", "-H", f"--job-name={name}", wrap="true")
    card = eventually(lambda: alice.tries("status", str(job), "-o", "json"), lambda s: s.code == 0)
    assert json.loads(card.out)["allocation"]["name"].startswith("\x1b[31m\n")
