"""Answers as JSON and YAML documents without characters that a terminal obeys."""

from __future__ import annotations

import msgspec

from lattice.base.text import inert_json


def as_json(answer: object) -> str:
    """The server's JSON, indented for people."""
    encoded = msgspec.json.format(msgspec.json.encode(answer), indent=2)
    return inert_json(encoded.decode()) + "\n"


def as_yaml(answer: object) -> str:
    """The answer as YAML."""
    import yaml  # noqa: PLC0415 - only YAML output pays for it

    plain = msgspec.to_builtins(answer)
    text = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True)
    if any(not (letter.isprintable() or letter == "\n") for letter in text):
        text = yaml.safe_dump(plain, sort_keys=False, allow_unicode=False)
    return str(text)
