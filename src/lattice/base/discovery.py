"""Finds what a folder of modules offers, so that a new file there needs no other line."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType
from typing import Any


def classes_in(package: ModuleType, method: str) -> Iterator[Any]:
    """Each public class with this method that a module of the package defines; no protocols."""
    for module in iter_modules(package.__path__, f"{package.__name__}."):
        for name, value in vars(import_module(module.name)).items():
            is_own = isinstance(value, type) and value.__module__ == module.name
            is_public = not name.startswith("_") and not getattr(value, "_is_protocol", False)
            if is_own and is_public and hasattr(value, method):
                yield value
