"""`lattice login`, `lattice logout` and `lattice whoami`."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Protocol

from lattice.base.command import Command, Option
from lattice.base.errors import ConfigurationError, LoginRequired, Unavailable
from lattice.base.shell import Shell
from lattice.base.text import inert
from lattice.domain.munge_claim import MUNGE
from lattice.domain.signin import SLURM, DeviceCode, IdentityProvider, Locker, Tokens
from lattice.features.identity import operations, render
from lattice.features.identity.model import AuthDiscovery

_FLOWS = ("pkce", "device", "manual", MUNGE, SLURM)
_NOT_LOGGED_IN = "Not logged in. Run `lattice login` first."


class SignInShell(Shell, Protocol):
    """A shell that can also sign people in and stores their tokens."""

    @property
    def locker(self) -> Locker:
        """The store of this server's tokens."""

    @property
    def scopes(self) -> tuple[str, ...]:
        """Scopes from the configuration, requested besides the default ones."""

    @property
    def fixed_token(self) -> bool:
        """True if LATTICE_TOKEN is set, which takes precedence over stored tokens."""

    def munge_tokens(self, cluster: str) -> Tokens:
        """Return the tokens of a sign-in by MUNGE to a cluster."""

    def slurm_tokens(self) -> Tokens:
        """Return the tokens of a sign-in by a Slurm token."""

    def provider(self, discovery: AuthDiscovery, *, browser: bool) -> IdentityProvider:
        """Return a client of the provider that the server names."""


def login(
    shell: SignInShell, *, flow: str | None, scope: tuple[str, ...], no_browser: bool, status: bool
) -> int:
    """Sign in, or with `status` show who is signed in."""
    if status:
        return _login_status(shell)
    if shell.fixed_token:
        raise ConfigurationError(
            "LATTICE_TOKEN is set and would be used whatever you sign in as",
            hint="Unset it first: unset LATTICE_TOKEN",
        )
    discovery = shell.call(operations.auth_discovery())
    if flow == MUNGE or (flow is None and not discovery.issuer and discovery.munge):
        return _by_munge(shell, discovery)
    if flow == SLURM:
        return _by_slurm_token(shell, discovery)
    if not discovery.issuer and discovery.slurm:
        # Never by itself: who has a Slurm token is its user for Slurm, too.
        raise ConfigurationError(
            "People sign in to this server by a Slurm token.",
            hint="Run `lattice login --flow slurm`, on a host with scontrol.",
        )
    if not discovery.issuer:
        raise ConfigurationError(
            "This server has no identity provider, so there is nobody to sign in with.",
            hint="Its administrator sets `oidc_issuer`; a token may come by LATTICE_TOKEN.",
        )
    provider = shell.provider(discovery, browser=not no_browser)
    scopes = (*shell.scopes, *scope)
    tokens = _sign_in(shell, provider, flow or pick_flow(shell.environment), scopes)
    shell.locker.keep(tokens, issuer=discovery.issuer, client_id=discovery.client_id)
    return _greet(shell)


def _by_munge(shell: SignInShell, discovery: AuthDiscovery) -> int:
    if not discovery.munge:
        raise ConfigurationError(
            "This server offers no signing in by MUNGE.",
            hint="Its administrator sets `munge: true`; or sign in with `lattice login` alone.",
        )
    tokens = shell.munge_tokens(discovery.munge)
    shell.locker.keep(tokens, issuer=MUNGE, client_id=discovery.munge)
    return _greet(shell)


def _by_slurm_token(shell: SignInShell, discovery: AuthDiscovery) -> int:
    if not discovery.slurm:
        raise ConfigurationError(
            "This server offers no signing in by Slurm tokens.",
            hint="Its administrator sets `slurm_tokens: true`; or sign in with `lattice login` "
            "alone.",
        )
    tokens = shell.slurm_tokens()
    shell.locker.keep(tokens, issuer=SLURM, client_id=discovery.slurm)
    return _greet(shell)


def pick_flow(environment: Mapping[str, str]) -> str:
    """Return `device` if no browser can open on this machine: over SSH, or without a display."""
    if environment.get("BROWSER"):
        return "pkce"
    if environment.get("SSH_CONNECTION") or environment.get("SSH_TTY"):
        return "device"
    return "pkce" if environment.get("DISPLAY") or environment.get("WAYLAND_DISPLAY") else "device"


def _sign_in(
    shell: SignInShell, provider: IdentityProvider, flow: str, scopes: tuple[str, ...]
) -> Tokens:
    if flow == "device":
        return provider.by_device(scopes, lambda code: _show_device(shell, code))
    if flow == "manual":
        return provider.by_hand(scopes, lambda address: _ask_back(shell, address))
    return provider.by_browser(scopes, lambda address, opened: _show_page(shell, address, opened))


def _show_page(shell: Shell, address: str, opened: bool) -> None:
    if opened:
        shell.warn("Your browser is open on the sign-in page. If you don't see it, go to:")
    else:
        shell.warn("Open this page in a browser on this machine:")
    shell.warn(f"  {inert(address)}")


def _show_device(shell: Shell, code: DeviceCode) -> None:
    shell.warn(f"On any device, open  {inert(code.page)}")
    shell.warn(f"and enter the code   {shell.style.paint(inert(code.code), 'bold')}")
    if code.page_with_code:
        shell.warn(f"or open at once      {inert(code.page_with_code)}")
    shell.warn(f"It is good for {int(code.lifetime_s // 60)} minutes; waiting …")


def _ask_back(shell: Shell, address: str) -> str:
    shell.warn("Open this page in any browser and sign in:")
    shell.warn(f"  {inert(address)}")
    shell.warn("The page it ends on can't be shown; that is meant. Copy its whole address.")
    return shell.ask("Paste the address here: ")


def _greet(shell: SignInShell) -> int:
    identity = shell.call(operations.whoami())
    until = identity.expires
    if until is None and (end := shell.locker.expires_at()) is not None:
        until = datetime.fromtimestamp(end, UTC)
    if shell.output in {"json", "yaml"}:
        shell.document(identity)
    else:
        shell.write(render.welcome(identity, until, shell.style, shell.clock.now()))
    return 0


def _login_status(shell: SignInShell) -> int:
    if not shell.fixed_token and not shell.locker.holds():
        raise LoginRequired(_NOT_LOGGED_IN)
    return _greet(shell)


def logout(shell: SignInShell) -> int:
    """Revoke the tokens and delete them."""
    if shell.fixed_token:
        shell.warn("LATTICE_TOKEN is set; only you can unset it.")
    issuer = shell.locker.issuer()
    tokens = shell.locker.empty()
    if not tokens:
        shell.note("Nobody was logged in.")
        return 0
    if issuer in {MUNGE, SLURM}:
        shell.note("Logged out: tokens deleted; a copy of one ends by itself.")
        return 0
    try:
        discovery = shell.call(operations.auth_discovery())
        provider = shell.provider(discovery, browser=False) if discovery.issuer else None
        revoked = provider is not None and provider.revoke(*tokens)
    except Unavailable as error:
        shell.warn(f"Tokens are deleted here but not revoked: {inert(error.message)}")
        shell.warn("Hint: They end by themselves; if that is too late, end the session there.")
        return 0
    if revoked:
        shell.note("Logged out: tokens revoked and deleted.")
    else:
        shell.note("Logged out: tokens deleted; the provider offers no way to revoke them.")
    return 0


def whoami(shell: Shell) -> int:
    """Show each fact about the caller and its source."""
    identity = shell.call(operations.whoami())
    if shell.output in {"json", "yaml"}:
        shell.document(identity)
    else:
        shell.write(render.facts(identity, shell.style, shell.clock.now()))
    return 0


LOGIN = Command(
    "login",
    summary="Sign in",
    text="Signs you in with the identity provider the server names, and keeps the tokens for you "
    "alone. They are renewed in silence until the provider ends the session.\n\n"
    "pkce opens a browser here. device shows a code to enter on any other device, and is taken "
    "where no browser can open. manual prints an address and reads back where it led. munge asks "
    "for nothing, on hosts of the cluster, where the site offers it. slurm sends a token of "
    "`scontrol token`, or the one in SLURM_JWT, which the server does not keep.",
    run=login,
    params=(
        Option("--flow", choices=_FLOWS, help="How to sign in; found out unless given."),
        Option("--scope", metavar="SCOPE", repeat=True, help="Ask for this scope too."),
        Option("--no-browser", help="Print the address instead of opening it."),
        Option("--status", help="Only say who is logged in; exit code 4 if nobody is."),
    ),
    examples=(
        ("lattice login", "the way that suits this machine"),
        ("lattice login --flow device", "with a phone, from anywhere"),
        ("lattice login --status", "for scripts: is anybody logged in?"),
    ),
    permission="none",
)

LOGOUT = Command(
    "logout",
    summary="Sign out: revoke and delete the tokens",
    text="Revokes the tokens with the identity provider and deletes them here. Says so if the "
    "provider could not be asked.",
    run=logout,
    examples=(("lattice logout", "forget this server's sign-in"),),
    permission="none",
)

WHOAMI = Command(
    "whoami",
    summary="Who the server takes you for, and why",
    text="Shows each fact the server holds true of you, and which claim or setting gave it: the "
    "first thing to look at when something is refused.",
    run=whoami,
    examples=(("lattice whoami", "user, role, tenant, scopes"),),
    permission="any role",
)
