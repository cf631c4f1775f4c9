"""Parses the usual argument lists directly, without click.

It is not a second command line. Anything unusual makes it return None: an unknown word, a mistake,
`--help`, `-qv`, `--output` without its value. Click then parses the list from the same declaration
and explains mistakes. A test has both parse thousands of lists and compares.
"""

from __future__ import annotations

from collections.abc import Sequence

from lattice.base.command import COMMON, Argument, Command, Option
from lattice.base.errors import UsageError


def read(command: Command, argv: Sequence[str]) -> dict[str, object] | None:
    """The values of options and arguments, or None if click has to parse the list."""
    by_flag = _options(command)
    values = {option.name: _unset(option) for option in by_flag.values()}
    loose: list[str] = []
    rest, behind = split(command, argv)
    values |= behind
    while rest:
        word = rest.pop(0)
        if command.passes_on and (word == "--" or not word.startswith("-")):
            loose, rest = [word, *rest], []
            continue
        if not word.startswith("-"):
            loose.append(word)
            continue
        flag, equals, value = word.partition("=")
        option = by_flag.get(flag)
        if option is None or (equals and (option.switch or not flag.startswith("--"))):
            return None
        if option.switch:
            values[option.name] = True
            continue
        if not equals:
            if not rest:
                return None
            value = rest.pop(0)
        if (value.startswith("-") and not option.dashed) or not _take(option, value, values):
            return None
    arguments = [
        param for param in command.params if isinstance(param, Argument) and not param.behind
    ]
    return values if _assign(arguments, loose, values) else None


def split(command: Command, argv: Sequence[str]) -> tuple[list[str], dict[str, tuple[str, ...]]]:
    """The arguments to parse, and the argument that takes those behind a `--`, by its name."""
    taker = next(
        (each.name for each in command.params if isinstance(each, Argument) and each.behind), None
    )
    if taker is None:
        return list(argv), {}
    by_flag = _options(command)
    at = 0
    while at < len(argv) and argv[at] != "--":
        at += 2 if argv[at].startswith("-") and _wants_next(argv[at], by_flag) else 1
    return list(argv[:at]), {taker: tuple(argv[at + 1 :])}


def separator(command: Command, argv: Sequence[str]) -> int | None:
    """The index of the `--` that ends the options; None if a word without a dash comes first."""
    by_flag = _options(command)
    at = 0
    while at < len(argv):
        word = argv[at]
        if word == "--":
            return at
        if not word.startswith("-") or word == "-":
            return None
        at += 2 if _wants_next(word, by_flag) else 1
    return None


def _options(command: Command) -> dict[str, Option]:
    """All options of the command, by their flags."""
    options = (*COMMON, *(param for param in command.params if isinstance(param, Option)))
    return {flag: option for option in options for flag in option.flags}


def _wants_next(word: str, by_flag: dict[str, Option]) -> bool:
    if word.startswith("--"):
        option = by_flag.get(word)
        return option is not None and not option.switch
    # Short flags may be joined, as in `-qN 2`, and a value may follow directly, as in `-N2`.
    for position, letter in enumerate(word[1:], 2):
        option = by_flag.get(f"-{letter}")
        if option is None or not option.switch:
            return option is not None and position == len(word)
    return False


def _unset(option: Option) -> object:
    if option.switch:
        return False
    return () if option.repeat else None


def _take(option: Option, text: str, values: dict[str, object]) -> bool:
    if option.choices and text not in option.choices:
        return False
    try:
        value = option.read(text) if option.read else text
    except UsageError:
        return False
    before = values[option.name]
    values[option.name] = (*before, value) if isinstance(before, tuple) else value
    return True


def _assign(arguments: Sequence[Argument], loose: Sequence[str], values: dict[str, object]) -> bool:
    left = list(loose)
    for argument in arguments:
        taken = left if argument.repeat else left[:1]
        left = [] if argument.repeat else left[1:]
        if argument.required and not taken:
            return False
        if argument.choices and not set(taken) <= set(argument.choices):
            return False
        if argument.repeat:
            values[argument.name] = tuple(taken)
        else:
            values[argument.name] = taken[0] if taken else None
    return not left
