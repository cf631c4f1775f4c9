"""Converts between dataclasses and protobuf messages with the same field names.

A field that only one of the two has is an error, so they can't differ unnoticed.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from datetime import UTC, datetime
from enum import Enum, StrEnum
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from lattice.base.choices import one_of

M = TypeVar("M", bound=Message)
V = TypeVar("V")


def message_of(value: Any, kind: type[M], *, without: frozenset[str] = frozenset()) -> M:
    """The dataclass as a message of this kind. `None` leaves its field unset.

    Fields in `without` are left out, in whichever of the two they are.
    """
    message = kind()
    _fill(message, value, without)
    return message


def value_of(message: Message, kind: type[V], *, missing: frozenset[str] = frozenset()) -> V:
    """The message as the dataclass. Raises `UsageError` for a value that an enumeration lacks.

    An unset field gets the default of the dataclass. So does a number or a text without presence
    that is 0 or empty, and a field that is `missing` in the message.
    """
    known: Mapping[str, Any] = message.DESCRIPTOR.fields_by_name
    own = {each.name: each for each in fields(kind) if each.name not in missing}  # type: ignore[arg-type]
    _check_names(kind.__name__, set(own), message)
    hints = _hints(cast("Hashable", kind))
    return kind(
        **{
            name: _read(getattr(message, name), hints[name], name)
            for name, field in own.items()
            if _is_set(message, known[name]) or _is_required(field)
        }
    )


def moment(stamp: Timestamp) -> datetime:
    return stamp.ToDatetime(tzinfo=UTC)


def _fill(message: Message, value: Any, without: frozenset[str] = frozenset()) -> None:
    names = {field.name for field in fields(value)} - without
    _check_names(type(value).__name__, names, message, without)
    for name in names:
        content = getattr(value, name)
        if content is None:
            continue
        if isinstance(content, tuple):
            _extend(getattr(message, name), content)
        elif is_dataclass(content):
            part = getattr(message, name)
            part.SetInParent()
            _fill(part, content)
        elif isinstance(content, datetime):
            getattr(message, name).FromDatetime(content)
        else:
            setattr(message, name, content.value if isinstance(content, Enum) else content)


def _extend(repeated: Any, items: tuple[Any, ...]) -> None:
    for item in items:
        if is_dataclass(item):
            _fill(repeated.add(), item)
        else:
            repeated.append(item.value if isinstance(item, Enum) else item)


def _check_names(
    kind: str, names: set[str], message: Message, without: frozenset[str] = frozenset()
) -> None:
    known = set(message.DESCRIPTOR.fields_by_name) - without
    if names != known:
        odd = ", ".join(sorted(names ^ known))
        raise TypeError(f"{kind} and {message.DESCRIPTOR.name} differ in {odd}")


@cache
def _hints(kind: Hashable) -> dict[str, Any]:
    return get_type_hints(kind)


def _is_set(message: Message, field: Any) -> bool:
    if field.has_presence:
        return message.HasField(field.name)
    content = getattr(message, field.name)
    return bool(content) if field.is_repeated else content != field.default_value


def _is_required(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def _read(content: Any, kind: Any, name: str) -> Any:
    if isinstance(kind, UnionType) or get_origin(kind) is Union:
        kind = next(each for each in get_args(kind) if each is not NoneType)
    collection = get_origin(kind)
    if collection in {tuple, frozenset}:
        member = get_args(kind)[0]
        # A message may have one text where the request takes several.
        several = (content,) if isinstance(content, str) else content
        return collection(_read(each, member, name.removesuffix("s")) for each in several)
    if collection is not None:
        return dict(content)
    if kind is datetime:
        return moment(content)
    if is_dataclass(kind):
        return value_of(content, cast("type[Any]", kind))
    if issubclass(kind, StrEnum):
        return one_of(kind, content, name)
    return content
