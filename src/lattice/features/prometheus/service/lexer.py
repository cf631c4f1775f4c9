"""Splits PromQL into tokens. Pure. Raises `NotUnderstood` at an unknown character."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, auto

from lattice.features.prometheus.model import LONGEST_QUERY

MOST_TOKENS = 4000


class NotUnderstood(ValueError):
    """The text is not PromQL that this parser supports; the message has the position."""


class TokenKind(Enum):
    """The kind of a token."""

    WORD = auto()
    NUMBER = auto()
    DURATION = auto()
    STRING = auto()
    SIGN = auto()
    END = auto()


@dataclass(frozen=True, slots=True)
class PromqlToken:
    """One token; the `text` of a string has no quotes and no escapes."""

    kind: TokenKind
    text: str
    at: int


_SPACE = re.compile(r"(?:[ \t\r\n]+|#[^\r\n]*)+")
_WORD = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
# Each unit once, from the longest to the shortest, as in Prometheus.
_DURATION = re.compile(
    r"(?=[0-9])(?:[0-9]+y)?(?:[0-9]+w)?(?:[0-9]+d)?(?:[0-9]+h)?(?:[0-9]+m(?!s))?(?:[0-9]+s)?"
    r"(?:[0-9]+ms)?(?![a-zA-Z0-9_.])"
)
_NUMBER = re.compile(
    r"(?:0[xX][0-9a-fA-F]+|(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)(?![a-zA-Z0-9_.])"
)
_SIGN = re.compile(r"==|!=|>=|<=|=~|!~|[-+*/%^><=(){}\[\],:@]")
_SIMPLE = {
    "a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v",
    "\\": "\\", '"': '"', "'": "'",
}  # fmt: skip
_CODED = {"x": 2, "u": 4, "U": 8}


def tokens(text: str) -> list[PromqlToken]:
    """Return all tokens and an END. Raises `NotUnderstood`."""
    if len(text) > LONGEST_QUERY:
        raise NotUnderstood(f"it has more than {LONGEST_QUERY} letters")
    found: list[PromqlToken] = []
    at = 0
    while True:
        space = _SPACE.match(text, at)
        at = space.end() if space else at
        if at == len(text):
            return [*found, PromqlToken(TokenKind.END, "", at)]
        if len(found) >= MOST_TOKENS:
            raise NotUnderstood("it is too long")
        token, at = _token(text, at)
        found.append(token)


def _token(text: str, at: int) -> tuple[PromqlToken, int]:
    if text[at] in "\"'`":
        return _string(text, at)
    for kind, pattern in (
        (TokenKind.WORD, _WORD),
        (TokenKind.DURATION, _DURATION),
        (TokenKind.NUMBER, _NUMBER),
        (TokenKind.SIGN, _SIGN),
    ):
        found = pattern.match(text, at)
        # A leading colon separates a subquery's range from its step.
        if found and not (kind is TokenKind.WORD and found[0].startswith(":")):
            return PromqlToken(kind, found[0], at), found.end()
    raise NotUnderstood(f"letter {at + 1}, {text[at]!r}, begins nothing that is known")


def _string(text: str, at: int) -> tuple[PromqlToken, int]:
    letters: list[str] = []
    quote, here = text[at], at + 1
    while here < len(text):
        letter = text[here]
        if letter == quote:
            return PromqlToken(TokenKind.STRING, "".join(letters), at), here + 1
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
        # `\x` above 127 and surrogates are not characters.
        most = 0x7F if sign == "x" else 0x10FFFF
        if re.fullmatch(r"[0-9a-fA-F]+", digits) and len(digits) == _CODED[sign]:
            point = int(digits, 16)
            if point <= most and not 0xD800 <= point <= 0xDFFF:
                return chr(point), at + 2 + len(digits)
    raise NotUnderstood(f"the escape at letter {at + 1} is not known")
