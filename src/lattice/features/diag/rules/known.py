"""The built-in rules: each module of this folder with a public rule class. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from operator import attrgetter
from pkgutil import iter_modules

from lattice.features.diag import rules
from lattice.features.diag.model import DiagRule


def known_rules() -> tuple[DiagRule, ...]:
    """Return one of each, in the order of their lines."""
    return tuple(sorted(_found(), key=attrgetter("order")))


def _found() -> Iterator[DiagRule]:
    for module in iter_modules(rules.__path__, f"{rules.__name__}."):
        for name, value in vars(import_module(module.name)).items():
            is_own = isinstance(value, type) and value.__module__ == module.name
            if is_own and hasattr(value, "judge") and not name.startswith("_"):
                yield value()
