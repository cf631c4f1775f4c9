"""Which server, and how: flags over environment over a person's file over the site's.

The person's is `~/.config/lattice/config.yaml`, the site's `/etc/lattice/config.yaml`.

A file of plain `key: value` lines, as most are, is parsed here directly. PyYAML takes longer to
import than the rest of a short command. Any other file goes to PyYAML.
"""

# Pathlib costs a short command more than all of this:
# ruff: noqa: PTH111, PTH118, PTH123

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import urlsplit

from lattice.base.errors import ConfigurationError
from lattice.base.fast_start.connector import LOOPBACK

KEYS = (
    "api_url",
    "local",
    "ca",
    "client_cert",
    "client_key",
    "output",
    "color",
    "scopes",
    "credentials",
)
_CHOICES = {
    "output": ("table", "wide", "json", "yaml"),
    "color": ("auto", "always", "never"),
    "credentials": ("file", "keyring"),
}
SITE_FILE = "/etc/lattice/config.yaml"
_SITE_HINT = (
    "This is the site's file, for everybody on this machine: its administrator can mend it."
)
_NO_SERVER = (
    "Name it with --api-url, LATTICE_API_URL or `api_url:` in {path}. On a host of the cluster "
    "--local does without one."
)
_SWITCHES = ("local",)
_BOOLEANS = {"true": True, "false": False}

# Only what YAML 1.1 reads alike: addresses, absolute paths, the words above, true and false.
_PLAIN = re.compile(
    r"([a-z_]+): +(https?://[\w.:/\[\],-]*[\w/\]]|/[\w./-]+|table|wide|json|yaml|auto|always|never|file|keyring"
    r"|true|false)",
    re.ASCII,
)


class Settings(NamedTuple):
    """The configuration of a client. `urls` are replicas of one server, tried in this order."""

    urls: tuple[str, ...]
    ca: str | None = None
    client_cert: str | None = None
    client_key: str | None = None
    output: str = "table"
    color: str = "auto"
    scopes: tuple[str, ...] = ()
    credentials: str = "file"
    token: str | None = None
    folder: str = ""
    local: bool = False
    """Without a server; then `urls` is empty."""

    def __repr__(self) -> str:
        """Without the token, because this text may get into a log."""
        return f"Settings(urls={self.urls!r})"

    @classmethod
    def load(
        cls,
        environment: Mapping[str, str] | None = None,
        *,
        api_url: str | None = None,
        ca: str | None = None,
        local: bool = False,
        site_file: str = SITE_FILE,
    ) -> Settings:
        """Flags (the arguments) override the environment, which overrides both files."""
        environment = os.environ if environment is None else environment
        folder = config_home(environment)
        path = environment.get("LATTICE_CONFIG") or os.path.join(folder, "config.yaml")
        own = _read(path, required="LATTICE_CONFIG" in environment)
        file = {**_read_site(site_file), **own}
        named = api_url or environment.get("LATTICE_API_URL") or ""
        # A server that is named nearer than the switch is meant.
        local = local or (not named and _is_local(own, file))
        url = named or _text(file, "api_url") or ""
        return cls(
            () if local else _urls(url, path),
            ca=ca or environment.get("LATTICE_CA") or _text(file, "ca"),
            client_cert=_text(file, "client_cert"),
            client_key=_text(file, "client_key"),
            output=_text(file, "output") or "table",
            color=_text(file, "color") or "auto",
            scopes=tuple((_text(file, "scopes") or "").replace(",", " ").split()),
            credentials=_text(file, "credentials") or "file",
            token=environment.get("LATTICE_TOKEN", "").strip() or None,
            folder=os.path.join(folder, "credentials"),
            local=local,
        )


def _is_local(own: Mapping[str, object], file: Mapping[str, object]) -> bool:
    """True if a file asks for it. A person's `api_url` is nearer than the site's `local`."""
    return bool(own["local"] if "local" in own else file.get("local") and "api_url" not in own)


def config_home(environment: Mapping[str, str]) -> str:
    """The folder of configuration and credentials."""
    base = environment.get("XDG_CONFIG_HOME") or os.path.join(home(environment), ".config")
    return os.path.join(base, "lattice")


def home(environment: Mapping[str, str]) -> str:
    """The person's home, from the environment or the password file."""
    return environment.get("HOME") or os.path.expanduser("~")


def _read_site(path: str) -> Mapping[str, object]:
    try:
        values = _read(path, required=False)
        if url := _text(values, "api_url"):
            _urls(url, path)
    except ConfigurationError as error:
        message = error.message if path in error.message else f"{path}: {error.message}"
        hint = f"{error.hint} {_SITE_HINT}" if error.hint else _SITE_HINT
        raise ConfigurationError(message, hint=hint) from None
    return values


def _read(path: str, *, required: bool) -> Mapping[str, object]:
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(1 << 20)
    except FileNotFoundError:
        if not required:
            return {}
        raise ConfigurationError(
            f"{path} does not exist", hint="LATTICE_CONFIG names it; unset it or make the file."
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise ConfigurationError(f"Can't read {path}: {reason}") from None
    values = read_plain(text)
    values = _read_yaml(text, path) if values is None else values
    problems = tuple(_problems(values))
    if problems:
        raise ConfigurationError(
            f"{path}: {'; '.join(problems)}", hint=f"Its keys are {', '.join(KEYS)}."
        )
    return values


def read_plain(text: str) -> Mapping[str, object] | None:
    """The values if the file has plain lines only, else None."""
    values: dict[str, object] = {}
    for line in text.splitlines():
        bare = line.rstrip()
        if not bare or bare.startswith("#"):
            continue
        found = _PLAIN.fullmatch(bare)
        if found is None or found[1] in values:
            return None
        values[found[1]] = _BOOLEANS.get(found[2], found[2])
    return values


def _read_yaml(text: str, path: str) -> Mapping[str, object]:
    import yaml  # noqa: PLC0415 - see the module's docstring

    try:
        values = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = getattr(error, "problem", None) or "is not YAML"
        raise ConfigurationError(f"{path}{where}: {problem}") from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ConfigurationError(f"{path} is not a list of `key: value`")
    return values


def _problems(values: Mapping[str, object]) -> list[str]:
    problems = []
    for key, value in values.items():
        if key not in KEYS:
            problems.append(_unknown(str(key)))
        elif key == "scopes" and isinstance(value, list):
            if not all(isinstance(each, str) for each in value):
                problems.append("scopes must be a list of words")
        elif key in _SWITCHES:
            if not isinstance(value, bool):
                problems.append(f"{key} must be true or false")
        elif not isinstance(value, str):
            problems.append(f"{key} must be text")
        elif value not in _CHOICES.get(key, (value,)):
            problems.append(f"{key} must be one of {', '.join(_CHOICES[key])}, not {value!r}")
    return problems


def _unknown(key: str) -> str:
    from difflib import get_close_matches  # noqa: PLC0415 - only for a file with a mistake

    near = get_close_matches(key, KEYS, 1)
    return f"unknown key {key!r}" + (f", did you mean {near[0]!r}?" if near else "")


def _text(values: Mapping[str, object], key: str) -> str | None:
    value = values.get(key)
    if isinstance(value, list):
        return " ".join(value)
    return value if isinstance(value, str) else None


def _urls(text: str, path: str) -> tuple[str, ...]:
    urls = tuple(url.strip().rstrip("/") for url in text.split(",") if url.strip())
    if not urls:
        raise ConfigurationError("No server is known.", hint=_NO_SERVER.format(path=path))
    for url in urls:
        _check_url(url)
    return urls


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        good = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
    except ValueError:
        good = False
    if not good or parts.query or parts.fragment or parts.username is not None:
        raise ConfigurationError(
            f"{url!r} is not a server's address", hint="Write it as https://HOST[:PORT]."
        )
    if parts.scheme == "http" and parts.hostname not in LOOPBACK:
        raise ConfigurationError(
            f"{url} would send your token unencrypted",
            hint="Use https; plain http is for a server on this machine only.",
        )
