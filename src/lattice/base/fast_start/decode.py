"""JSON into the frozen dataclasses of answers, with errors that name the place.

It does what `msgspec.json.decode` does for the few shapes that answers have; a test compares the
two. Importing msgspec takes as long as starting Python, and a short command decodes once. Unknown
fields are ignored, because a newer server may send more.
"""

from __future__ import annotations

import json
import types
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from datetime import datetime
from enum import Enum
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

T = TypeVar("T")

Reader = Callable[[Any, str], Any]
_MUCH_BYTES = 256 * 1024


class BadAnswer(ValueError):
    """The JSON does not fit the type. The message names the place and the reason."""


def decode(body: bytes, kind: type[T]) -> T:
    """Decode one JSON document into the type. Raises `BadAnswer`."""
    return reader(kind)(body)


def reader(kind: type[T]) -> Callable[[bytes], T]:
    """A decoder for many documents of one type, as in a stream."""
    read = _reader(kind, {})
    parse: Callable[[bytes], Any] = json.loads
    size_bytes = 0

    def one(body: bytes) -> T:
        nonlocal parse, size_bytes
        size_bytes += len(body)
        if size_bytes > _MUCH_BYTES and parse is json.loads:
            parse = _quick_parse()
        try:
            document = parse(body)
        except (ValueError, RecursionError):
            raise BadAnswer("not a JSON document") from None
        value: T = read(document, "$")
        return value

    return one


def _quick_parse() -> Callable[[bytes], Any]:
    """A parser that takes a third of the time for long texts, which is worth its import."""
    import msgspec  # noqa: PLC0415

    def parse(body: bytes) -> Any:
        try:
            return msgspec.json.decode(body)
        except msgspec.DecodeError:
            # msgspec is the stricter of the two. If `json` fails too, this is no document.
            return json.loads(body)

    return parse


def _reader(kind: Any, made: dict[Any, Reader]) -> Reader:
    if kind not in made:
        made[kind] = _make(kind, made)
    return made[kind]


def _make(kind: Any, made: dict[Any, Reader]) -> Reader:
    if kind in _PLAIN:
        return _PLAIN[kind]
    if is_dataclass(kind):
        return _dataclass_reader(kind, made)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _enum_reader(kind)
    arguments = get_args(kind)
    if isinstance(kind, types.UnionType):
        return _union_reader(kind, arguments, made)
    if get_origin(kind) is Literal:
        return _literal_reader(arguments)
    if get_origin(kind) is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
        return _tuple_reader(_reader(arguments[0], made))
    raise TypeError(f"no answer is made of {kind}")


def _union_reader(kind: Any, arguments: tuple[Any, ...], made: dict[Any, Reader]) -> Reader:
    if all(is_dataclass(each) for each in arguments):
        return _tagged_reader(arguments, made)
    if len(arguments) != 2 or type(None) not in arguments:
        raise TypeError(f"no answer is made of {kind}")
    (inner,) = (each for each in arguments if each is not type(None))
    return _optional_reader(_reader(inner, made))


def _expected(what: str, value: object, where: str) -> BadAnswer:
    found = "null" if value is None else type(value).__name__
    return BadAnswer(f"{where}: expected {what}, found {found}")


def _exact_reader(kind: type, what: str) -> Reader:
    def read(value: Any, where: str) -> Any:
        if type(value) is not kind:
            raise _expected(what, value, where)
        return value

    return read


def _number(value: Any, where: str) -> float:
    if type(value) not in {int, float}:
        raise _expected("a number", value, where)
    return float(value)


_text = _exact_reader(str, "text")


def _moment(value: Any, where: str) -> datetime:
    text = _text(value, where)
    try:
        found = datetime.fromisoformat(text) if text[10:11] == "T" else None
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        raise BadAnswer(f"{where}: {text[:40]!r} is no time with its zone")
    return found


_PLAIN: dict[Any, Reader] = {
    str: _text,
    int: _exact_reader(int, "a whole number"),
    float: _number,
    bool: _exact_reader(bool, "true or false"),
    datetime: _moment,
}


def _optional_reader(inner: Reader) -> Reader:
    return lambda value, where: None if value is None else inner(value, where)


def _tuple_reader(inner: Reader) -> Reader:
    def read(value: Any, where: str) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise _expected("a list", value, where)
        return tuple(inner(each, f"{where}[{index}]") for index, each in enumerate(value))

    return read


def _enum_reader(kind: type[Enum]) -> Reader:
    by_value = {member.value: member for member in kind}

    def read(value: Any, where: str) -> Enum:
        member = by_value.get(value) if isinstance(value, str) else None
        if member is None:
            raise BadAnswer(f"{where}: {str(value)[:40]!r} is no {kind.__name__}")
        return member

    return read


def _literal_reader(allowed: tuple[Any, ...]) -> Reader:
    def read(value: Any, where: str) -> Any:
        if value not in allowed:
            raise BadAnswer(f"{where}: {str(value)[:40]!r} is none of {', '.join(allowed)}")
        return value

    return read


def _tagged_reader(kinds: tuple[Any, ...], made: dict[Any, Reader]) -> Reader:
    """A reader for a union of dataclasses with different literals in their field `type`."""
    by_tag = {get_args(get_type_hints(kind)["type"])[0]: _reader(kind, made) for kind in kinds}

    def read(value: Any, where: str) -> Any:
        if not isinstance(value, dict):
            raise _expected("an object", value, where)
        tag = value.get("type")
        inner = by_tag.get(tag) if isinstance(tag, str) else None
        if inner is None:
            raise BadAnswer(f"{where}.type: {str(tag)[:40]!r} is none of {', '.join(by_tag)}")
        return inner(value, where)

    return read


def _dataclass_reader(kind: Any, made: dict[Any, Reader]) -> Reader:
    hints = get_type_hints(kind)
    readers = {each.name: _reader(hints[each.name], made) for each in fields(kind)}
    needed = {
        each.name
        for each in fields(kind)
        if each.default is MISSING and each.default_factory is MISSING
    }

    def read(value: Any, where: str) -> Any:
        if not isinstance(value, dict):
            raise _expected("an object", value, where)
        for name in needed:
            if name not in value:
                raise BadAnswer(f"{where}: {name} is missing")
        return kind(
            **{
                name: inner(value[name], f"{where}.{name}")
                for name, inner in readers.items()
                if name in value
            }
        )

    return read
