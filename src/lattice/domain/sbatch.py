"""The spelling of `sbatch` options, and those in a script. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

# sbatch's short options as getopt reads them: `:` takes a value, `::` only one glued to it.
_SHORT = "A:B:C:D:F:G:HJ:L:M:N:OQS:VWa:b:c:d:e:hi:k::m:n:o:p:q:st:vw:x:"
TAKES_VALUE = {letter: bool(colons) for letter, colons in re.findall(r"([A-Za-z])(:*)", _SHORT)}
"""By the letter of each short option."""

# The short form, the long one, and how far getopt lets people shorten that.
JOB_NAME, COMMENT = ("-J", "--job-name", 5), ("", "--comment", 5)
PARTITION, QOS, RESERVATION = ("-p", "--partition", 6), ("-q", "--qos", 4), ("", "--reservation", 5)


def is_option(word: str, option: tuple[str, str, int]) -> bool:
    """True if the word is this option, in full or shortened."""
    short, long, least = option
    if word.startswith("--"):
        name = word.partition("=")[0]
        return len(name) >= least and long.startswith(name)
    return bool(short) and short[1] in short_options(word)


def short_options(word: str) -> str:
    """The letters of `-HW` or `-HJname` that sbatch takes for options, up to an unknown one.

    The word before it does not matter. If the word is in fact a value, too much is refused, never
    too little.
    """
    if not word.startswith("-") or word.startswith("--") or word[1:2].isdigit():
        return ""
    letters = ""
    for letter in word[1:]:
        letters += letter
        if TAKES_VALUE.get(letter, True):
            break
    return letters


def option_value(options: Sequence[str], option: tuple[str, str, int]) -> str:
    """The value of an option, the last one if it stands twice; empty if it is not there."""
    value = ""
    for word, following in zip(options, (*options[1:], ""), strict=False):
        if not is_option(word, option):
            continue
        if word.startswith("--"):
            _, equals, given = word.partition("=")
        else:
            given = word[len(short_options(word)) + 1 :]
            equals = given
        value = given if equals else following
    return value


def script_options(script: str) -> tuple[str, ...]:
    """The words of the script's `#SBATCH` lines, as far as Slurm itself reads."""
    options: list[str] = []
    for line in script.splitlines():
        if line.startswith("#SBATCH"):
            try:
                options += shlex.split(line.removeprefix("#SBATCH"), comments=True)
            except ValueError:  # sbatch reports an open quote
                options += line.split()[1:]
        elif line.strip() and not line.startswith("#"):
            break
    return tuple(options)


def has_comment(options: Sequence[str], script: str) -> bool:
    """True if the job has a comment of its own, from an option or from the script."""
    return any(is_option(word, COMMENT) for word in (*options, *script_options(script)))
