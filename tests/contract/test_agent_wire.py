"""The wire that agents of earlier releases speak: nothing of it vanishes or changes.

`tests/golden/agent_wire.txt` has every part that any release had. What agents of two earlier
releases really sent is replayed in test_older_wire.py and test_older_feed.py.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)

from scripts.golden_wire import agent_wire, descriptors, other_lines, vanished, wire_lines

GOLDEN = (Path(__file__).parents[1] / "golden" / "agent_wire.txt").read_text().splitlines()


def message(files: list[FileDescriptorProto], name: str) -> DescriptorProto:
    return next(each for file in files for each in file.message_type if each.name == name)


def field(of: DescriptorProto, name: str) -> FieldDescriptorProto:
    return next(each for each in of.field if each.name == name)


@pytest.mark.spec("AUTH-9", "LOG-3")
def test_nothing_of_the_wire_of_an_earlier_release_is_gone() -> None:
    lost = vanished(GOLDEN, [*wire_lines(descriptors()), *other_lines()])
    hint = "agents of earlier releases speak this: keep it, or reserve the field in its proto"
    assert lost == [], hint


def test_what_the_golden_file_has_stays_in_it() -> None:
    assert "message Gone 1: string word" in agent_wire("message Gone 1: string word\n")


def test_the_golden_file_has_all_kinds_of_parts() -> None:
    kinds = {line.partition(" ")[0] for line in GOLDEN}
    assert kinds >= {"rpc", "message", "enum", "frame", "word", "strict"}
    assert "message Hello 4: string agent_version" in GOLDEN
    assert (
        "rpc LinkService/Link(stream .lattice.v1.LinkUp) -> stream .lattice.v1.LinkDown" in GOLDEN
    )
    assert any(line.startswith("message FeedPiece 5:") for line in GOLDEN)
    assert any(line.startswith("strict question enter: ") for line in GOLDEN)


def _removed(files: list[FileDescriptorProto]) -> None:
    hello = message(files, "Hello")
    hello.field.remove(field(hello, "boot_id"))


def _renumbered(files: list[FileDescriptorProto]) -> None:
    field(message(files, "Hello"), "boot_id").number = 9


def _retyped(files: list[FileDescriptorProto]) -> None:
    field(message(files, "Ticket"), "opening").type = FieldDescriptorProto.TYPE_STRING


def _repeated(files: list[FileDescriptorProto]) -> None:
    field(message(files, "Ticket"), "grant").label = FieldDescriptorProto.LABEL_REPEATED


def _answered_otherwise(files: list[FileDescriptorProto]) -> None:
    service = next(each for file in files for each in file.service if each.name == "LogIntake")
    service.method[0].output_type = ".lattice.v1.StoredChunk"


def _number_alone_reserved(files: list[FileDescriptorProto]) -> None:
    _removed(files)
    span = message(files, "Hello").reserved_range.add()
    span.start, span.end = 2, 3


@pytest.mark.parametrize(
    "change",
    [_removed, _renumbered, _retyped, _repeated, _answered_otherwise, _number_alone_reserved],
)
def test_a_change_that_older_agents_do_not_understand_is_found(
    change: Callable[[list[FileDescriptorProto]], None],
) -> None:
    files = descriptors()
    golden = wire_lines(files)
    change(files)
    assert vanished(golden, wire_lines(files))


def test_a_field_may_be_added_and_one_be_reserved() -> None:
    files = descriptors()
    golden = wire_lines(files)
    hello = message(files, "Hello")
    hello.field.add(name="new", number=99, type=FieldDescriptorProto.TYPE_BYTES)
    _number_alone_reserved(files)
    hello.reserved_name.append("boot_id")
    assert vanished(golden, wire_lines(files)) == []


def test_a_document_that_is_read_strictly_may_gain_no_field() -> None:
    (line,) = (each for each in GOLDEN if each.startswith("strict question rejoin: "))
    assert vanished([line], [f"{line}; more str"]) == [line]
