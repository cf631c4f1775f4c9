"""The labels that `srun --label` writes before each line, and how to detect them. Pure.

A label is the task's number, as wide as the largest one, and `: `. A program's own output may look
the same, so labels are trusted only in a file where every line has one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

_LABEL = re.compile(rb" {0,8}(0|[1-9][0-9]{0,8}): ")
_FIELD = re.compile(r"%(?:%|[0-9]*[A-Za-z])")

_SHORT_WITH_VALUE = frozenset("AbBcCdDeGiJLmMnNopqrStTwWx")
_SHORT_ALONE = frozenset("EHlOQsuvVXZ")
_LONG_WITH_VALUE = re.compile(
    """
    accel-bind | account | acctg-freq | bbf? | begin | chdir | cluster-constraint | clusters
    | comment | constraint | container | context | core-spec | cores-per-socket | cpu-bind
    | cpu-freq | cpus-per-gpu | cpus-per-task | deadline | delay-boot | dependency | distribution
    | epilog | error | exclude | export | extra-node-info | gid | gpu-bind | gpu-freq
    | gpus(-per-(node|socket|task))? | gres | gres-flags | het-group | hint | input | job-name
    | jobid | licenses | mail-type | mail-user | mcs-label | mem | mem-bind | mem-per-[cg]pu
    | mincpus | mpi | msg-timeout | network | nodefile | nodelist | nodes
    | ntasks(-per-(core|gpu|node|socket|tres))? | open-mode | output | partition | power | prefer
    | priority | profile | prolog | qos | relative | reservation | signal | slurmd-debug
    | sockets-per-node | switches | task-epilog | task-prolog | thread-spec | threads
    | threads-per-core | time | time-min | tmp | tres-per-task | uid | wait | wckey
    """,
    re.VERBOSE,
)
"""An option that is missing here is taken as one without a value. Then its value ends the options,
and the rest is unknown. The other way round, a word of the program might pass for an option.
"""


def rank_of(line: bytes) -> int | None:
    """The task of a labelled line; None if it has no label."""
    found = _LABEL.match(line)
    return None if found is None else int(found[1])


def labelled_names(arguments: Sequence[str]) -> tuple[str, ...]:
    """The files in which this srun labels each line, as its options name them."""
    if ":" in arguments:
        # Several programs, each with its own options.
        return ()
    labels = False
    names: list[str] = []
    for option, value in _options(arguments[1:]):
        if option in {"l", "label"}:
            labels = True
        elif option in {"o", "output", "e", "error"}:
            names.append(value)
    return tuple(names) if labels else ()


def is_named(path: str, name: str) -> bool:
    """True if this may be the file that an option calls `name`, with fields such as `%t`."""
    pattern, at = "", 0
    wanted = PurePosixPath(name).name
    for field in _FIELD.finditer(wanted):
        pattern += re.escape(wanted[at : field.start()]) + ("%" if field[0] == "%%" else ".+")
        at = field.end()
    pattern += re.escape(wanted[at:])
    return bool(wanted) and re.fullmatch(pattern, PurePosixPath(path).name) is not None


def _options(arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Every option with its value, up to the program."""
    left = iter(arguments)
    for word in left:
        if word.startswith("--") and len(word) > 2:
            name, equals, value = word[2:].partition("=")
            if not equals and _LONG_WITH_VALUE.fullmatch(name):
                value = next(left, "")
            yield name, value
        elif word.startswith("-") and len(word) > 1 and word != "--":
            yield from _letters(word[1:], left)
        else:
            return


def _letters(word: str, left: Iterator[str]) -> Iterator[tuple[str, str]]:
    """`lun4`: letters without a value, and at the end perhaps one with a value."""
    for number, letter in enumerate(word, 1):
        if letter in _SHORT_WITH_VALUE:
            yield letter, word[number:] or next(left, "")
            return
        if letter not in _SHORT_ALONE:
            # An unknown letter; the rest may be its value.
            return
        yield letter, ""
