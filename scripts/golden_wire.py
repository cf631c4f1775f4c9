"""The wire between agents and servers, a line a part, for tests/golden/agent_wire.txt.

Agents of two earlier releases speak to a server. So no line may ever vanish from that file: a
field keeps its number, its type and its name, an rpc its types. `just generate` adds lines and
removes none; tests/contract/test_agent_wire.py fails for one that the code no longer has. A field
that nobody needs any more is `reserved` in its proto, and its line stays.

The documents at the end are read strictly by agents and helpers: an older one refuses a field that
it does not know. They may not gain a field either. What is new gets a document of its own.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Iterable, Iterator
from importlib import import_module
from typing import Any, get_type_hints

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    ServiceDescriptorProto,
)

from lattice.domain.grant import Act, Grant
from lattice.domain.pipe import FrameKind
from lattice.domain.privileged import VERBS, Answer, HelperRole
from lattice.domain.signedtime import SignedTime
from lattice.domain.stream import StreamKind
from lattice.domain.terminal import TerminalKind, TerminalSignal
from lattice.features.link.node.echo import ProbeOpening
from lattice.features.logs.node.feed import FeedOpening
from lattice.wire import v1

_PACKAGE = "lattice.v1"
_RPCS = (
    "AgentIdentityService",
    "AgentService/Enrol",
    "LinkService",
    "LogIntake",
    "MetricIntake",
    "PeerService",
)
"""What agents call, and what servers of two releases ask each other."""
_ON_STREAMS = (
    *("FeedAsk", "FeedTell", "OutputLook", "LookOpening", "LookTell"),
    *("FactsOpening", "FactsTell", "StacksOpening", "StacksTell"),
)
"""Messages inside the frames of a stream, where no rpc names them."""
_NUMBERED = (FrameKind, TerminalKind)
_NAMED = (StreamKind, Act, TerminalSignal)
_STRICT = (Grant, SignedTime, Answer, FeedOpening, ProbeOpening)
_FIELD = FieldDescriptorProto


def descriptors() -> list[FileDescriptorProto]:
    """The protos of the code."""
    found = []
    for module in pkgutil.iter_modules(v1.__path__):
        if module.name.endswith("_pb2"):
            made = FileDescriptorProto()
            import_module(f"{v1.__name__}.{module.name}").DESCRIPTOR.CopyToProto(made)
            found.append(made)
    return found


def wire_lines(files: Iterable[FileDescriptorProto]) -> list[str]:
    """A line for each rpc, field and value that agents and servers exchange."""
    messages: dict[str, DescriptorProto] = {}
    enums: dict[str, EnumDescriptorProto] = {}
    services: dict[str, ServiceDescriptorProto] = {}
    for file in files:
        prefix = f".{file.package}"
        services |= {each.name: each for each in file.service}
        enums |= {f"{prefix}.{each.name}": each for each in file.enum_type}
        messages |= {f"{prefix}.{each.name}": each for each in file.message_type}
    lines, wanted = list[str](), [f".{_PACKAGE}.{name}" for name in _ON_STREAMS]
    for name in _RPCS:
        service, _, only = name.partition("/")
        for rpc in services[service].method:
            if rpc.name == only or not only:
                asked = "stream " * rpc.client_streaming + rpc.input_type
                given = "stream " * rpc.server_streaming + rpc.output_type
                lines.append(f"rpc {service}/{rpc.name}({asked}) -> {given}")
                wanted += [rpc.input_type, rpc.output_type]
    for name in _reached(messages, wanted):
        lines += _message_lines(messages[name], name.rpartition(".")[2], enums)
    return sorted(set(lines))


def _reached(messages: dict[str, DescriptorProto], wanted: list[str]) -> list[str]:
    """These messages and all that stand in them."""
    found: list[str] = []
    for name in wanted:
        if name in messages and name not in found:
            found.append(name)
            wanted += [each.type_name for each in messages[name].field if each.type_name]
    return found


def _message_lines(
    message: DescriptorProto, name: str, enums: dict[str, EnumDescriptorProto]
) -> Iterator[str]:
    for field in message.field:
        label = "repeated " * (field.label == _FIELD.LABEL_REPEATED)
        label += "optional " * field.proto3_optional
        if field.HasField("oneof_index") and not field.proto3_optional:
            label = f"oneof {message.oneof_decl[field.oneof_index].name} "
        kind = field.type_name or _FIELD.Type.Name(field.type).removeprefix("TYPE_").lower()
        yield f"message {name} {field.number}: {label}{kind} {field.name}"
        if field.type_name in enums:
            enum = enums[field.type_name]
            yield from (f"enum {enum.name} {each.number}: {each.name}" for each in enum.value)
    for span in message.reserved_range:
        yield from (f"reserved {name} {number}" for number in range(span.start, span.end))
    yield from (f"reserved {name} {each}" for each in message.reserved_name)


def other_lines() -> list[str]:
    """What stands in frames besides messages, and documents that are read strictly."""
    lines = [
        f"frame {kind.__name__} {each.value}: {each.name}" for kind in _NUMBERED for each in kind
    ]
    lines += [f"word {kind.__name__} {each.value}" for kind in _NAMED for each in kind]
    lines += [_strict_line(each.__name__, each) for each in _STRICT]
    lines += [
        _strict_line(f"question {verb.name}", verb.question)
        for verb in VERBS.values()
        if verb.role is HelperRole.NODE
    ]
    return sorted(lines)


def _strict_line(name: str, kind: Any) -> str:
    """All fields in one line: a field more is another document."""
    fields = (
        f"{field} {getattr(hint, '__name__', hint) if isinstance(hint, type) else hint}"
        for field, hint in get_type_hints(kind).items()
    )
    return f"strict {name}: {'; '.join(fields)}"


def vanished(golden: Iterable[str], now: Iterable[str]) -> list[str]:
    """The lines of the golden file that do not hold any more."""
    there = set(now)
    return [line for line in golden if line not in there and not _is_reserved(line, there)]


def _is_reserved(line: str, there: set[str]) -> bool:
    kind, _, rest = line.partition(" ")
    if kind != "message":
        return False
    head, _, declared = rest.partition(": ")
    message, number = head.split(" ")
    name = declared.rpartition(" ")[2]
    return {f"reserved {message} {number}", f"reserved {message} {name}"} <= there


def agent_wire(before: str) -> str:
    """The golden file: what was ever there, and what the code has now."""
    now = [*wire_lines(descriptors()), *other_lines()]
    return "\n".join(sorted({*before.splitlines(), *now})) + "\n"
