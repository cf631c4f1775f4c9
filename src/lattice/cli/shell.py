"""The real shell of a command: this terminal, this configuration, this server.

The composition root of the `lattice` program. Each part is made on first use, so that a command
pays only for what it uses.
"""

from __future__ import annotations

import os
import stat
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC
from importlib import import_module
from typing import TYPE_CHECKING, TypeVar

from lattice.base.call import BytesCall, Call, StreamCall, TerminalCall
from lattice.base.clock import Clock, SystemClock
from lattice.base.errors import UsageError
from lattice.base.style import Style
from lattice.base.text import inert_json
from lattice.client.blocking_client import SyncClient
from lattice.client.settings import Settings
from lattice.client.tokens import VaultLocker, open_vault

if TYPE_CHECKING:
    from lattice.base.command import Command
    from lattice.base.shell import CallRunner, Fetched, Followed
    from lattice.domain.signin import IdentityProvider, Tokens
    from lattice.features.identity.model import AuthDiscovery

T = TypeVar("T")


class TerminalShell:
    """Standard input, output and error; configuration; one server."""

    def __init__(self, common: Mapping[str, object], environment: Mapping[str, str]) -> None:
        self.environment = environment
        self.clock: Clock = SystemClock()
        self._quiet = bool(common.get("quiet"))
        self._verbose = bool(common.get("verbose"))
        self._settings = Settings.load(
            environment,
            api_url=_text(common.get("api_url")),
            ca=_text(common.get("ca")),
            local=bool(common.get("local")),
        )
        self.output = _text(common.get("output")) or self._settings.output
        terminal = sys.stdout.isatty()
        self.live = terminal and environment.get("TERM") != "dumb"
        self.interactive = sys.stdin is not None and sys.stdin.isatty()
        columns, rows = _size(environment) if terminal else (None, None)
        self.style = Style(
            width=columns if self.output != "wide" else None,
            height=rows,
            colour=self._coloured(off=bool(common.get("no_color"))),
            glyphs=_can_show(sys.stdout.encoding),
            wide=self.output == "wide",
            zone=UTC if common.get("utc") else None,
        )
        self._client: SyncClient | None = None
        self._local: CallRunner | None = None

    def check_server(self, command: Command) -> None:
        """Raise `UsageError` if the command needs a server and there is to be none."""
        if self._settings.local and not (command.serverless or command.alone):
            raise UsageError(
                f"`lattice {command.name}` needs a Lattice server.",
                hint="Without one (--local, or `local: true` in the configuration) there are "
                "status, history, logs and top.",
            )

    @property
    def local(self) -> CallRunner | None:
        """What answers without a server; None with one."""
        if self._local is None and self._settings.local:
            # By its name, as commands are: with a server nothing of it is loaded.
            module = import_module("lattice.local.client")
            make: Callable[..., CallRunner] = module.LocalClient
            self._local = make(self.clock, note=self.note, warn=self.warn)
        return self._local

    def close(self) -> None:
        """End what was started for the command."""
        if self._local is not None:
            self._local.close()

    def _coloured(self, *, off: bool) -> bool:
        if off or self.environment.get("NO_COLOR") or self._settings.color == "never":
            return False
        return self._settings.color == "always" or self.live

    @property
    def client(self) -> SyncClient:
        """The SDK, for this server."""
        if self._client is None:
            self._client = SyncClient(self._settings, environment=self.environment, warn=self.warn)
        return self._client

    @property
    def server_url(self) -> str:
        return self.client.url

    def call(self, call: Call[T]) -> T:
        if self.local is not None:
            return self.local.call(call)
        client = self.client
        if self._verbose:
            self.warn(f"{call.method} {client.url}{call.path}")
        return client.call(call)

    def stream(self, call: StreamCall[T]) -> Followed[T]:
        if self.local is not None:
            return self.local.stream(call)
        client = self.client
        if self._verbose:
            self.warn(f"GET {client.url}{call.path}")
        return client.stream(call)

    def fetch(self, call: BytesCall) -> Fetched:
        if self.local is not None:
            return self.local.fetch(call)
        return self.client.fetch(call)

    def attach(self, call: TerminalCall) -> int:
        from lattice.cli.attach_session import attach  # noqa: PLC0415

        if self._verbose:
            self.warn(f"GET {self.client.url}{call.path}")
        return attach(
            call,
            self.client,
            self.clock,
            term=self.environment.get("TERM", ""),
            quiet=self._quiet,
            warn=self.warn,
        )

    def reference(self, word: str | None) -> str:
        if word and word.isascii() and word.isdigit() and len(word) < 10 and word[0] != "0":
            # A bare id needs no resolution, so nothing has to be loaded.
            return word
        # Features don't import each other; the shell may import them all.
        from lattice.features.allocations.command.options import own_job, resolve  # noqa: PLC0415

        named = word or own_job(self)
        if named is None:
            raise UsageError("Missing argument 'ID'.", hint="`lattice status` lists your ids.")
        return resolve(self, named)

    def page(self, texts: Iterable[str]) -> None:
        from lattice.cli.pager import page  # noqa: PLC0415

        page(texts, self.environment, width=self.style.width, height=self.style.height)

    def write(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()

    def write_secretly(self) -> None:
        try:
            out = sys.stdout.fileno()
            found = os.fstat(out)
            if stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid():
                os.fchmod(out, 0o600)
        except OSError:
            self.warn("Standard output may be readable by others, and what follows is secret.")

    def write_bytes(self, text: bytes) -> None:
        sys.stdout.flush()
        sys.stdout.buffer.write(text)
        sys.stdout.buffer.flush()

    def note(self, text: str) -> None:
        if not self._quiet:
            self.warn(text)

    def warn(self, text: str) -> None:
        sys.stderr.write(text + "\n")
        sys.stderr.flush()

    def document(self, answer: object) -> None:
        self.write(as_yaml(answer) if self.output == "yaml" else as_json(answer))

    def record(self, answer: object) -> None:
        import msgspec  # noqa: PLC0415

        self.write(inert_json(msgspec.json.encode(answer).decode()) + "\n")

    def ask(self, prompt: str) -> str:
        sys.stderr.write(prompt)
        sys.stderr.flush()
        line = sys.stdin.readline()
        if not line:
            if sys.stdin.isatty():
                raise UsageError("No answer was given.")
            raise UsageError("There was nobody to ask.", hint="Run it in a terminal.")
        return line.strip()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def later(self, seconds: float, act: Callable[[], None]) -> Callable[[], None]:
        from threading import Timer  # noqa: PLC0415

        timer = Timer(seconds, act)
        timer.daemon = True
        timer.start()
        return timer.cancel

    def keys(self, act: Callable[[str], None]) -> Callable[[], None]:
        from lattice.cli.terminal import listen  # noqa: PLC0415

        return listen(act)

    @property
    def scopes(self) -> tuple[str, ...]:
        return self._settings.scopes

    @property
    def fixed_token(self) -> bool:
        return self._settings.token is not None

    @property
    def locker(self) -> VaultLocker:
        return VaultLocker(open_vault(self._settings))

    def munge_tokens(self, cluster: str) -> Tokens:
        from lattice.client.munge_sign_in import munge_tokens  # noqa: PLC0415

        return munge_tokens(self.client, cluster, self.environment)

    def slurm_tokens(self) -> Tokens:
        from lattice.client.slurm_sign_in import slurm_tokens  # noqa: PLC0415

        return slurm_tokens(self.client, self._settings.urls, self.environment)

    def provider(self, discovery: AuthDiscovery, *, browser: bool) -> IdentityProvider:
        from lattice.adapters.oidc.signin import SignInProvider  # noqa: PLC0415

        return SignInProvider.at(
            discovery.issuer,
            discovery.client_id,
            address=discovery.idp_url or discovery.issuer,
            ca=self._settings.ca,
            environment=self.environment,
            browser=browser,
        )


def as_json(answer: object) -> str:
    """The server's JSON, indented for people, without characters that a terminal obeys."""
    import msgspec  # noqa: PLC0415 - only documents pay for it

    encoded = msgspec.json.format(msgspec.json.encode(answer), indent=2)
    return inert_json(encoded.decode()) + "\n"


def as_yaml(answer: object) -> str:
    """The answer as YAML, without characters that a terminal obeys."""
    import msgspec  # noqa: PLC0415
    import yaml  # noqa: PLC0415

    plain = msgspec.to_builtins(answer)
    text = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True)
    if any(not (letter.isprintable() or letter == "\n") for letter in text):
        text = yaml.safe_dump(plain, sort_keys=False, allow_unicode=False)
    return str(text)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _size(environment: Mapping[str, str]) -> tuple[int, int]:
    try:
        columns, rows = os.get_terminal_size(sys.stdout.fileno())
    except (OSError, ValueError):
        columns, rows = 0, 0
    named = environment.get("COLUMNS", "")
    if named.isascii() and named.isdigit():
        columns = int(named) or columns
    return columns or 80, rows or 24


def _can_show(encoding: str | None) -> bool:
    return (encoding or "").lower().replace("-", "") == "utf8"
