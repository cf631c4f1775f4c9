"""What is generated is fresh, and the dataclasses and messages of a thing have the same fields."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from google.protobuf import descriptor_pool
from google.protobuf.descriptor import Descriptor

from lattice.base.operation import Operation, StreamOperation, request_fields
from lattice.wire.guard import declared_permissions

ROOT = Path(__file__).resolve().parents[2]
FEATURES = ROOT / "src" / "lattice" / "features"
UNEQUAL = {"LogPage"}
"""Answers whose message is written by hand: a record is one of several kinds."""


def operations() -> Iterator[Operation[Any, Any] | StreamOperation[Any, Any]]:
    """Every operation that a feature declares."""
    declared_permissions()
    for path in sorted(FEATURES.glob("*/operations.py")):
        module = import_module(f"lattice.features.{path.parent.name}.operations")
        for value in vars(module).values():
            several = value.values() if isinstance(value, dict) else (value,)
            yield from (each for each in several if isinstance(each, Operation | StreamOperation))


GENERATED = (
    ("v1", "wire/v1"),
    ("etcd", "adapters/etcd/wire"),
    ("spiffe", "adapters/spiffe/wire"),
)
EVERY = tuple(operations())
NAMES = [f"{each.rpc.rpartition('/')[2]} {each.path}" for each in EVERY]


def messages(rpc: str) -> tuple[Descriptor, Descriptor]:
    service, _, name = rpc.partition("/")
    method = descriptor_pool.Default().FindServiceByName(service).methods_by_name[name]
    return method.input_type, method.output_type


def test_generated_code_is_fresh(tmp_path: Path) -> None:
    subprocess.run([ROOT / "scripts" / "generate", tmp_path], check=True, capture_output=True)
    for made, folder in GENERATED:
        fresh = {file.name: file.read_text() for file in (tmp_path / made).iterdir()}
        checked_in = {
            file.name: file.read_text()
            for file in (ROOT / "src/lattice" / folder).iterdir()
            if file.is_file()
        }
        assert fresh == checked_in


@pytest.mark.parametrize(
    ("script", "files"),
    [
        ("sdk.py", ("client/verbs.py", "client/verbs_async.py")),
        ("command_table.py", ("cli/command_table.py",)),
    ],
)
def test_what_features_declare_is_generated_anew(
    script: str, files: tuple[str, ...], tmp_path: Path
) -> None:
    """`just generate` writes them."""
    words = [sys.executable, ROOT / "scripts" / script, tmp_path]
    subprocess.run(words, check=True, capture_output=True)
    for each in files:
        fresh = (tmp_path / Path(each).name).read_text()
        assert fresh == (ROOT / "src" / "lattice" / each).read_text(), each


@pytest.mark.parametrize("operation", EVERY, ids=NAMES)
def test_a_request_has_the_fields_of_its_message(
    operation: Operation[Any, Any] | StreamOperation[Any, Any],
) -> None:
    if isinstance(operation, Operation) and operation.rest_id:
        return
    known = set(messages(operation.rpc)[0].fields_by_name)
    own = {each.name: each.rule for each in request_fields(operation.request)}
    assert known <= set(own)
    assert all(own[each].header for each in set(own) - known)


@pytest.mark.parametrize("operation", EVERY, ids=NAMES)
def test_an_answer_has_the_fields_of_its_message(
    operation: Operation[Any, Any] | StreamOperation[Any, Any],
) -> None:
    if isinstance(operation, Operation) and operation.answer.__name__ not in UNEQUAL:
        agree(operation.answer, messages(operation.rpc)[1])


def agree(kind: Any, message: Descriptor) -> None:
    known = message.fields_by_name
    assert {each.name for each in fields(kind)} == set(known), kind
    for name, hint in get_type_hints(kind).items():
        inner = known[name].message_type if name in known else None
        for part in (
            hint,
            *get_args(hint),
            *(x for each in get_args(hint) for x in get_args(each)),
        ):
            if inner is not None and isinstance(part, type) and is_dataclass(part):
                agree(part, inner)
