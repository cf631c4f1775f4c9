from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from lattice.base.errors import ConfigurationError, LoginRequired, Unavailable
from lattice.domain.signin import DeviceCode, Tokens
from lattice.features.identity.command import login, logout, pick_flow, whoami
from lattice.features.identity.model import AuthDiscovery
from tests.fakes import answers
from tests.fakes.shell import FakeShell, Told

DISCOVERY: dict[str, Any] = {
    "idp_url": "https://idp",
    "client_id": "lattice",
    "issuer": "https://idp",
}


class Locker:
    def __init__(self) -> None:
        self.kept: tuple[str, ...] = ()
        self.issued_by = ""

    def keep(self, tokens: Tokens, *, issuer: str, client_id: str) -> None:  # noqa: ARG002
        self.kept = (tokens.access,)
        self.issued_by = issuer

    def empty(self) -> tuple[str, ...]:
        kept, self.kept = self.kept, ()
        return kept

    def expires_at(self) -> float | None:
        return 1794754931.0 if self.kept else None

    def issuer(self) -> str:
        return self.issued_by

    def holds(self) -> bool:
        return bool(self.kept)


class Provider:
    def __init__(self) -> None:
        self.used: list[Any] = []
        self.revokes: bool | Exception = True

    def by_browser(self, scopes: Sequence[str], show: Callable[[str, bool], None]) -> Tokens:
        show("https://idp/page?\x1b", True)
        self.used.append(("pkce", tuple(scopes)))
        return Tokens(access="a1")

    def by_device(self, scopes: Sequence[str], show: Callable[[DeviceCode], None]) -> Tokens:
        show(
            DeviceCode(
                page="https://idp/device", code="ABCD-\x1bEFGH", page_with_code=None, lifetime_s=600
            )
        )
        self.used.append(("device", tuple(scopes)))
        return Tokens(access="a1")

    def by_hand(self, scopes: Sequence[str], ask: Callable[[str], str]) -> Tokens:  # noqa: ARG002
        self.used.append(("manual", ask("https://idp/page")))
        return Tokens(access="a1")

    def renew(self, refresh: str) -> Tokens:  # noqa: ARG002
        raise AssertionError

    def revoke(self, *tokens: str) -> bool:
        self.used.append(("revoke", tokens))
        if isinstance(self.revokes, Exception):
            raise self.revokes
        return self.revokes


class SignInShell(FakeShell):
    def __init__(self, discovery: Told | None = None, **options: Any) -> None:
        routes: dict[str, Told] = {
            "/api/v1/auth/discovery": discovery or DISCOVERY,
            "/v1/auth/whoami": answers.IDENTITY,
        }
        super().__init__(routes, **options)
        self.locker = Locker()
        self.scopes = ("allocations:read",)
        self.fixed_token = False
        self.identity_provider = Provider()

    def munge_tokens(self, cluster: str) -> Tokens:
        return Tokens(access=f"munge for {cluster}", refresh="munge")

    def slurm_tokens(self) -> Tokens:
        return Tokens(access="own", refresh="slurm")

    def provider(self, discovery: AuthDiscovery, *, browser: bool) -> Provider:  # noqa: ARG002
        return self.identity_provider


def sign_in(shell: SignInShell, **values: Any) -> int:
    return login(
        shell, **({"flow": None, "scope": (), "no_browser": False, "status": False} | values)
    )


@pytest.mark.spec("AUTH-1")
def test_login_says_who_one_is_now() -> None:
    shell = SignInShell(environment={"DISPLAY": ":0"})
    assert sign_in(shell, scope=("tenant:admin",)) == 0
    assert (
        shell.out == "Logged in as alice (role User, tenant physics), token valid until 15:02Z.\n"
    )
    assert shell.locker.kept == ("a1",)
    assert shell.identity_provider.used == [("pkce", ("allocations:read", "tenant:admin"))]
    assert all(line.isprintable() for line in shell.warnings)


@pytest.mark.spec("AUTH-1")
@pytest.mark.parametrize(
    ("environment", "flow"),
    [
        ({}, "device"),
        ({"DISPLAY": ":0"}, "pkce"),
        ({"WAYLAND_DISPLAY": "w"}, "pkce"),
        ({"DISPLAY": ":0", "SSH_CONNECTION": "x"}, "device"),
        ({"SSH_CONNECTION": "x", "BROWSER": "firefox"}, "pkce"),
    ],
)
def test_the_way_to_sign_in_is_found_out(environment: dict[str, str], flow: str) -> None:
    assert pick_flow(environment) == flow


def test_device_code_is_shown_and_inert() -> None:
    shell = SignInShell()
    sign_in(shell)
    assert any("ABCD-␛EFGH" in line for line in shell.warnings)


def test_manual_reads_a_line() -> None:
    shell = SignInShell()
    shell.typed = ["http://127.0.0.1/callback?code=c"]
    sign_in(shell, flow="manual")
    assert shell.identity_provider.used == [("manual", "http://127.0.0.1/callback?code=c")]


def test_end_of_token_from_the_vault_where_the_server_is_silent() -> None:
    shell = SignInShell()
    shell.routes = dict(shell.routes) | {"/v1/auth/whoami": answers.IDENTITY | {"expires": None}}
    sign_in(shell)
    assert "token valid until 15:02Z" in shell.out


def test_server_without_a_provider() -> None:
    with pytest.raises(ConfigurationError, match="no identity provider"):
        sign_in(SignInShell({"idp_url": "", "client_id": "", "issuer": ""}))


BY_MUNGE: dict[str, Any] = {"idp_url": "", "client_id": "", "issuer": "", "munge": "lab-1"}


@pytest.mark.spec("TRY-4")
@pytest.mark.parametrize(
    ("discovery", "flow"), [(BY_MUNGE, None), (BY_MUNGE, "munge"), (DISCOVERY | BY_MUNGE, "munge")]
)
def test_signing_in_by_munge(discovery: dict[str, Any], flow: str | None) -> None:
    shell = SignInShell(discovery)
    assert sign_in(shell, flow=flow) == 0
    assert shell.locker.kept == ("munge for lab-1",)
    assert shell.locker.issued_by == "munge"
    assert "Logged in as alice" in shell.out
    assert shell.identity_provider.used == []


@pytest.mark.spec("TRY-4")
def test_the_provider_goes_first_where_there_are_both() -> None:
    shell = SignInShell(DISCOVERY | {"munge": "lab-1"}, environment={"DISPLAY": ":0"})
    assert sign_in(shell) == 0
    assert shell.locker.issued_by == "https://idp"


@pytest.mark.spec("TRY-4")
def test_munge_where_the_server_does_not_offer_it() -> None:
    with pytest.raises(ConfigurationError, match="no signing in by MUNGE"):
        sign_in(SignInShell(), flow="munge")


@pytest.mark.spec("TRY-4")
def test_logout_after_munge_asks_no_provider() -> None:
    shell = SignInShell(DISCOVERY | {"munge": "lab-1"})
    sign_in(shell, flow="munge")
    assert logout(shell) == 0
    assert shell.notes == ["Logged out: tokens deleted; a copy of one ends by itself."]
    assert shell.identity_provider.used == []


BY_SLURM: dict[str, Any] = {"idp_url": "", "client_id": "", "issuer": "", "slurm": "lab-1"}


@pytest.mark.spec("TRY-4")
@pytest.mark.parametrize(
    "discovery", [BY_SLURM, DISCOVERY | {"slurm": "lab-1"}, BY_MUNGE | BY_SLURM]
)
def test_signing_in_by_a_slurm_token_and_out_again(discovery: dict[str, Any]) -> None:
    shell = SignInShell(discovery)
    assert sign_in(shell, flow="slurm") == 0
    assert shell.locker.kept == ("own",)
    assert shell.locker.issued_by == "slurm"
    assert "Logged in as alice" in shell.out
    assert logout(shell) == 0
    assert shell.notes == ["Logged out: tokens deleted; a copy of one ends by itself."]
    assert shell.identity_provider.used == []


@pytest.mark.spec("TRY-4")
@pytest.mark.threat("slurm-token")
def test_no_server_gets_a_slurm_token_without_being_asked_to() -> None:
    shell = SignInShell(BY_SLURM)
    with pytest.raises(ConfigurationError, match="by a Slurm token") as refusal:
        sign_in(shell)
    assert "--flow slurm" in str(refusal.value.hint)
    assert shell.locker.kept == ()
    both = SignInShell(BY_MUNGE | {"slurm": "lab-1"})
    sign_in(both)
    assert both.locker.issued_by == "munge"


@pytest.mark.spec("TRY-4")
def test_slurm_tokens_where_the_server_does_not_take_them() -> None:
    with pytest.raises(ConfigurationError, match="no signing in by Slurm tokens"):
        sign_in(SignInShell(BY_MUNGE), flow="slurm")


def test_environment_token_is_not_hidden_by_a_login() -> None:
    shell = SignInShell()
    shell.fixed_token = True
    with pytest.raises(ConfigurationError, match="LATTICE_TOKEN"):
        sign_in(shell)
    assert sign_in(shell, status=True) == 0


def test_status_without_a_login() -> None:
    with pytest.raises(LoginRequired, match="Not logged in"):
        sign_in(SignInShell(), status=True)


@pytest.mark.spec("AUTH-1")
@pytest.mark.parametrize(
    ("revokes", "said"),
    [
        (True, "Logged out: tokens revoked and deleted."),
        (False, "Logged out: tokens deleted; the provider offers no way to revoke them."),
    ],
)
def test_logout(revokes: bool, said: str) -> None:
    shell = SignInShell()
    sign_in(shell)
    shell.identity_provider.revokes = revokes
    assert logout(shell) == 0
    assert shell.notes == [said]
    assert shell.identity_provider.used[-1] == ("revoke", ("a1",))
    assert not shell.locker.kept


def test_logout_deletes_even_if_nobody_can_be_asked() -> None:
    shell = SignInShell()
    sign_in(shell)
    shell.identity_provider.revokes = Unavailable("away")
    assert logout(shell) == 0
    assert "Tokens are deleted here but not revoked: away" in shell.warnings
    assert not shell.locker.kept
    assert logout(shell) == 0
    assert shell.notes == ["Nobody was logged in."]


@pytest.mark.spec("AUTH-11")
def test_whoami_shows_each_fact_and_what_gave_it() -> None:
    shell = FakeShell({"/v1/auth/whoami": answers.IDENTITY})
    assert whoami(shell) == 0
    rows = {line.split()[0]: line for line in shell.out.splitlines()}
    assert rows["user"].split() == ["user", "alice", "claim", "preferred_username"]
    assert (
        rows["role"].endswith("User             default") or rows["role"].split()[-1] == "default"
    )
    assert "claim tenant" in rows["tenant"]
    assert "openid profile" in rows["scopes"]
    shell = FakeShell({"/v1/auth/whoami": answers.IDENTITY}, output="json")
    whoami(shell)
    assert json.loads(shell.out)["user"]["source"] == "claim preferred_username"


@pytest.mark.spec("AUTH-11")
def test_whoami_of_one_who_owns_nothing() -> None:
    nobody = answers.IDENTITY | {
        "user": {"value": "", "source": ""},
        "tenant": {"value": "", "source": ""},
    }
    shell = FakeShell({"/v1/auth/whoami": nobody})
    whoami(shell)
    assert "none: owns no allocations" in shell.out
