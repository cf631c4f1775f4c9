"""PromQL as tokens. Pure. A letter that can't begin a token ends the reading with an error."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, auto

from lattice.features.prometheus.model import LONGEST_QUERY

MOST_TOKENS = 4000


class NotUnderstood(ValueError):
    """The text is not PromQL as it is known here; the words say where."""


class Kind(Enum):
    """What a token is."""

    WORD = auto()
    NUMBER = auto()
    DURATION = auto()
    STRING = auto()
    SIGN = auto()
    END = auto()


@dataclass(frozen=True, slots=True)
class Token:
    """One token; `text` of a string is what it stands for, without quotes and escapes."""

    kind: Kind
    text: str
    at: int


_SPACE = re.compile(r"(?:[ \t\r\n]+|#[^\r\n]*)+")
_WORD = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
# Each unit once, the longest first, as Prometheus has it.
_DURATION = re.compile(
    r"(?=[0-9])(?:[0-9]+y)?(?:[0-9]+w)?(?:[0-9]+d)?(?:[0-9]+h)?(?:[0-9]+m(?!s))?(?:[0-9]+s)?"
    r"(?:[0-9]+ms)?(?![a-zA-Z0-9_.])"
)
_NUMBER = re.compile(
    r"(?:0[xX][0-9a-fA-F]+|(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)(?![a-zA-Z0-9_.])"
)
_SIGN = re.compile(r"==|!=|>=|<=|=~|!~|[-+*/%^><=(){}\[\],:@]")
_SIMPLE = {
    "a": "\a",
    "b": "\b",
    "f": "\f",
    "n": "\n",
    "r": "\r",
    "t": "\t",
    "v": "\v",
    "\\": "\\",
    '"': '"',
    "'": "'",
}
_CODED = {"x": 2, "u": 4, "U": 8}


def tokens(text: str) -> list[Token]:
    """All of them, with an END. Raises `NotUnderstood`."""
    if len(text) > LONGEST_QUERY:
        raise NotUnderstood(f"it has more than {LONGEST_QUERY} letters")
    found: list[Token] = []
    at = 0
    while True:
        space = _SPACE.match(text, at)
        at = space.end() if space else at
        if at == len(text):
            return [*found, Token(Kind.END, "", at)]
        if len(found) >= MOST_TOKENS:
            raise NotUnderstood("it is too long")
        token, at = _token(text, at)
        found.append(token)


def _token(text: str, at: int) -> tuple[Token, int]:
    if text[at] in "\"'`":
        return _string(text, at)
    for kind, pattern in (
        (Kind.WORD, _WORD),
        (Kind.DURATION, _DURATION),
        (Kind.NUMBER, _NUMBER),
        (Kind.SIGN, _SIGN),
    ):
        found = pattern.match(text, at)
        # A colon alone parts a subquery's range from its step.
        if found and not (kind is Kind.WORD and found[0].startswith(":")):
            return Token(kind, found[0], at), found.end()
    raise NotUnderstood(f"letter {at + 1}, {text[at]!r}, begins nothing that is known")


def _string(text: str, at: int) -> tuple[Token, int]:
    letters: list[str] = []
    quote, here = text[at], at + 1
    while here < len(text):
        letter = text[here]
        if letter == quote:
            return Token(Kind.STRING, "".join(letters), at), here + 1
        if quote != "`" and letter == "\n":
            break
        if quote != "`" and letter == "\\":
            letter, here = _escape(text, here, quote)
        else:
            here += 1
        letters.append(letter)
    raise NotUnderstood(f"the text that begins at letter {at + 1} has no end")


def _escape(text: str, at: int, quote: str) -> tuple[str, int]:
    sign = text[at + 1 : at + 2]
    if sign in _SIMPLE and (sign not in {'"', "'"} or sign == quote):
        return _SIMPLE[sign], at + 2
    if sign in _CODED:
        digits = text[at + 2 : at + 2 + _CODED[sign]]
        # Bytes above 127 and halves of pairs are no letters.
        most = 0x7F if sign == "x" else 0x10FFFF
        if re.fullmatch(r"[0-9a-fA-F]+", digits) and len(digits) == _CODED[sign]:
            point = int(digits, 16)
            if point <= most and not 0xD800 <= point <= 0xDFFF:
                return chr(point), at + 2 + len(digits)
    raise NotUnderstood(f"the escape at letter {at + 1} is not known")
