"""An operation of the server, declared once. REST, gRPC and the SDK are derived from it.

A feature's `operations.py` declares its operations, and its `wiring.py` binds each to the method
that carries it out. The proto file of the rpc declares the permission. A request field that the
path names is sent in the path. A field with the rule `header` is sent in a header. The others are
sent in the query of a GET, or in the JSON body of other methods.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import MISSING, Field, fields
from datetime import datetime
from enum import Enum
from typing import Any, Generic, NamedTuple, Protocol, TypeAlias, TypeVar, get_type_hints
from urllib.parse import quote

from lattice.base.call import Call, StreamCall, StreamFormat, StreamInterpreter, params
from lattice.base.errors import UsageError

PREFIX = "/v1"
"""The prefix of every path, except those at the root."""

Q = TypeVar("Q")
A = TypeVar("A")


class FieldRule(NamedTuple):
    """How a request field looks on the wire. It is part of the field's annotation."""

    name: str = ""
    """The name in path, query or header, if that differs from the field's name."""
    least: int | None = None
    most: int | None = None
    below: int | None = None
    longest: int | None = None
    """Characters of a text, or members of a list."""
    pattern: str = ""
    header: bool = False
    """Sent in a header. The gRPC message need not have the field."""
    grpc_only: bool = False
    """Only the gRPC message has the field, REST has not."""
    commas: bool = False
    """The members of a list are one text, separated by commas."""
    check: Callable[[str], str] | None = None
    """Returns the text to send, or raises `UsageError` before anything is sent."""
    read: Callable[[str], Any] | None = None
    """Parses the value from the text of a query."""


class RequestField(NamedTuple):
    """A request field with its rule."""

    name: str
    type: Any
    default: Any
    """`MISSING` if the field is required."""
    rule: FieldRule

    @property
    def wire_name(self) -> str:
        """The name in path, query or header."""
        return self.rule.name or self.name


class Operation(NamedTuple, Generic[Q, A]):
    """One call that a server answers with one value."""

    rpc: str
    method: str
    path: str
    request: type[Q]
    answer: type[A]
    timeout_s: float | None = None
    """How long a client waits, if longer than usual."""
    idempotent: bool = False
    """An act that has the same effect when it is carried out twice."""
    largest_body_bytes: int = 64 * 1024
    stops_with_caller: bool = False
    """The work ends when the caller disconnects."""
    at_root: bool = False
    """The path has no version prefix."""
    rest_id: str = ""
    """The id of a second path of the same rpc. Such an operation is offered over REST only."""

    def to(
        self,
        handler: Callable[[Any, Q], Awaitable[A]],
        message: Callable[[A], Any] | None = None,
    ) -> Binding[Q, A]:
        """Bind the operation to the method of a service that carries it out.

        `message` makes the gRPC message, if its fields differ from those of the answer.
        """
        return Binding(self, handler, message)

    def call(self, request: Q) -> Call[A]:
        """The call to a server for this request. Raises `UsageError` for an invalid value."""
        sent = _sent(self.path, self.method, request)
        takes_body = self.method != "GET" and bool(self.body_fields())
        return Call(
            self.method,
            ("" if self.at_root else PREFIX) + sent.path,
            self.answer,
            tuple(sent.query),
            json.dumps(sent.body).encode() if takes_body else None,
            tuple(sent.headers),
            timeout_s=self.timeout_s,
            idempotent=self.idempotent,
            rpc=self.rpc,
            request=request,
        )

    def body_fields(self) -> tuple[RequestField, ...]:
        """The fields that are sent in the body."""
        if self.method == "GET":
            return ()
        return tuple(
            each
            for each in request_fields(self.request)
            if not (in_path(self.path, each) or each.rule.header or each.rule.grpc_only)
        )


class Binding(NamedTuple, Generic[Q, A]):
    """An operation and the method that carries it out."""

    operation: Operation[Q, A]
    handler: Callable[[Any, Q], Awaitable[A]]
    message: Callable[[A], Any] | None = None


Records: TypeAlias = AsyncGenerator[tuple[A, str], None]
"""Records, each with the cursor after which a stream continues."""


class StreamOperation(NamedTuple, Generic[Q, A]):
    """One call that a server answers with a stream of records. A GET over REST."""

    rpc: str
    path: str
    request: type[Q]
    """It may have a field `cursor`; a browser sends that as `Last-Event-ID`."""
    kinds: Mapping[str, type[A]]
    """The type of a record by the name of its event."""
    beginning: tuple[str, ...] = ()
    """Parameters that set the start. They mean nothing once there is a cursor."""
    binary: StreamFormat | None = None
    """A cheaper form over REST, for clients that accept it."""

    def to(
        self,
        handler: Callable[[Any, Q], Awaitable[Records[A]]],
        message: Callable[[A, str], Any],
        binary: BinaryStream[Q] | None = None,
    ) -> StreamBinding[Q, A]:
        """Bind it to a method. `message` makes the gRPC message from a record and its cursor."""
        return StreamBinding(self, handler, message, binary)

    def call(self, request: Q, reading: Callable[[], StreamInterpreter[A]]) -> StreamCall[A]:
        """The call to a server for this request. Raises `UsageError` for an invalid value."""
        sent = _sent(self.path, "GET", request)
        return StreamCall(
            PREFIX + sent.path,
            self.kinds,
            reading,
            tuple(sent.query),
            beginning=self.beginning,
            binary=self.binary,
            rpc=self.rpc,
            request=request,
        )


class StreamBinding(NamedTuple, Generic[Q, A]):
    """A stream operation and the method that carries it out."""

    operation: StreamOperation[Q, A]
    handler: Callable[[Any, Q], Awaitable[Records[A]]]
    message: Callable[[A, str], Any]
    binary: BinaryStream[Q] | None = None


class RecordWriter(Protocol):
    """Encodes the records of one connection."""

    begin: bytes
    """The first bytes."""
    alive: bytes
    """What shows that the server is there."""
    end: bytes
    """The last bytes of a stream without an error."""

    def record(self, record: Any, cursor: str) -> bytes:
        """A record, and the cursor after it if there is one."""

    def error(self, document: bytes) -> bytes:
        """The last bytes of a stream with an error, which is JSON."""


class BinaryStream(NamedTuple, Generic[Q]):
    """How the form `StreamOperation.binary` is made."""

    handler: Callable[[Any, Q, Mapping[str, str]], Awaitable[Records[Any]]]
    """As the handler of the binding, with records for the writer.

    It also gets the parameters of the media type that the client accepts.
    """
    writer: Callable[[], RecordWriter]


AnyBinding: TypeAlias = Binding[Any, Any] | StreamBinding[Any, Any]


class _Sent(NamedTuple):
    path: str
    query: list[tuple[str, str]]
    headers: list[tuple[str, str]]
    body: dict[str, Any]


_FIELDS: dict[type, tuple[RequestField, ...]] = {}


def request_fields(kind: type) -> tuple[RequestField, ...]:
    """The fields of a request in order, each with its rule."""
    if kind not in _FIELDS:
        hints = get_type_hints(kind, include_extras=True)
        _FIELDS[kind] = tuple(_field(each, hints) for each in fields(kind))
    return _FIELDS[kind]


def _field(field: Field[Any], hints: Mapping[str, Any]) -> RequestField:
    hint = hints[field.name]
    notes = getattr(hint, "__metadata__", ())
    rule = next((each for each in notes if isinstance(each, FieldRule)), FieldRule())
    default = field.default
    if field.default_factory is not MISSING:
        default = field.default_factory()
    plain = hint.__origin__ if notes else hint
    return RequestField(field.name, plain, default, rule)


def check_request(request: Any) -> None:
    """Raise `UsageError` if a field breaks its rule. REST checks this when it parses the field."""
    for each in request_fields(type(request)):
        problem = _problem(getattr(request, each.name), each.rule)
        if problem:
            raise UsageError(f"The request is not valid: {each.wire_name}: {problem}.")


def _problem(value: Any, rule: FieldRule) -> str:
    if isinstance(value, tuple | frozenset) and rule.commas:
        value = ",".join(map(str, value))
    if isinstance(value, bool) or value is None:
        return ""
    if isinstance(value, int):
        return _out_of_range(value, rule)
    if rule.longest is not None and hasattr(value, "__len__") and len(value) > rule.longest:
        return f"at most {rule.longest} are allowed"
    if rule.pattern and isinstance(value, str) and not re.fullmatch(rule.pattern, value):
        return "it is not of the form that is allowed"
    return ""


def _out_of_range(value: int, rule: FieldRule) -> str:
    if rule.least is not None and value < rule.least:
        return f"at least {rule.least} is allowed"
    if rule.most is not None and value > rule.most:
        return f"at most {rule.most} is allowed"
    if rule.below is not None and value >= rule.below:
        return f"less than {rule.below} is allowed"
    return ""


def in_path(path: str, field: RequestField) -> bool:
    return f"{{{field.wire_name}}}" in path


def _sent(path: str, method: str, request: Any) -> _Sent:
    sent = _Sent(path, [], [], {})
    for each in request_fields(type(request)):
        value = getattr(request, each.name)
        if in_path(path, each):
            text = quote(_text(value, each.rule), safe="")
            sent = sent._replace(path=sent.path.replace(f"{{{each.wire_name}}}", text))
        elif value == each.default or each.rule.grpc_only:
            continue
        elif each.rule.header:
            sent.headers.append((each.wire_name, _text(value, each.rule)))
        elif method == "GET":
            sent.query.extend(_pairs(each, value))
        else:
            sent.body[each.name] = value
    return sent


def _pairs(field: RequestField, value: Any) -> tuple[tuple[str, str], ...]:
    if isinstance(value, tuple | frozenset):
        texts = tuple(_text(each, field.rule) for each in value)
        return params(**{field.wire_name: ",".join(texts) if field.rule.commas else texts})
    return params(**{field.wire_name: _text(value, field.rule)})


def _text(value: Any, rule: FieldRule) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        return value.isoformat()
    text = str(value.value if isinstance(value, Enum) else value)
    return rule.check(text) if rule.check else text
