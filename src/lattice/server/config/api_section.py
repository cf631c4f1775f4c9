"""The section `api` of the server: its listeners, and how callers prove who they are.

Rules between its keys are in `api_rules`.
"""
# ruff: noqa: RUF009 - `setting` declares a field, as `dataclasses.field` does.

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from lattice.access.actor import ClaimNames
from lattice.base.address import Address
from lattice.base.setting import Secret, setting
from lattice.domain.spiffe import DEFAULT_PATH


class ListenerAddress(StrEnum):
    """The two listeners for people and services."""

    REST = "rest"
    GRPC = "grpc"


class AuthMode(StrEnum):
    """How callers prove who they are, in order of precedence."""

    ISSUER = "issuer"
    HMAC = "hmac"
    MUNGE = "munge"
    SLURM = "slurm"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpiffeSection:
    trust_domain: str = setting(
        "", "The SPIFFE trust domain whose SVIDs name nodes. Empty: no SVID is accepted."
    )
    path: str = setting(
        DEFAULT_PATH,
        "The path of a node's SPIFFE ID; `{node}` is its name in Slurm. Any other ID is refused.",
    )
    bundle: Path | None = setting(
        None,
        "The domain's authorities, PEM (`spire-server bundle show`). Read again when the file "
        "changes.",
    )
    socket: str = setting(
        "",
        "In place of `bundle`: the Workload API that has them, `unix:///run/spire/agent.sock`. "
        "Who can create that socket can make nodes: its folder should be root's.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiSection:
    rest_listen: Address = setting(
        Address("127.0.0.1", 8080),
        "Where REST, SSE and WebSocket are served.",
        env="LATTICE_REST_LISTEN",
    )
    grpc_listen: Address = setting(
        Address("127.0.0.1", 50051), "Where gRPC is served.", env="LATTICE_GRPC_LISTEN"
    )
    agent_listen: Address = setting(
        Address("0.0.0.0", 50052),  # noqa: S104 - the cluster's certificate is required
        "Where agents and other replicas are served, once `identity` is set. Every caller must "
        "show a certificate of the cluster's own authority.",
        env="LATTICE_AGENT_LISTEN",
    )
    agent_advertise: Address | None = setting(
        None,
        "Where nodes and other replicas reach that listener. Needed if `agent_listen` is a "
        "wildcard; not set: the same.",
        env="LATTICE_AGENT_ADVERTISE",
    )
    lanes: bool = setting(
        True,
        "Carry streams of nodes over TLS on `lane_listen`. Agents that can't reach it, or older "
        "ones, use gRPC on `agent_listen`.",
    )
    lane_listen: Address = setting(
        Address("0.0.0.0", 50053),  # noqa: S104 - the cluster's certificate is required
        "Where agents dial lanes, once `identity` is set. Every caller must show a certificate of "
        "the cluster's own authority.",
        env="LATTICE_LANE_LISTEN",
    )
    lane_advertise: Address | None = setting(
        None,
        "Where nodes reach that listener. Not set: at the host of `agent_advertise`, with the port "
        "of `lane_listen`.",
        env="LATTICE_LANE_ADVERTISE",
    )
    spiffe: SpiffeSection = setting(
        SpiffeSection(), "Nodes whose certificates come from SPIRE, beside those of `identity`."
    )
    tls_cert: Path | None = setting(
        None, "Certificate chain of the server, PEM. Read again when the file changes."
    )
    tls_key: Path | None = setting(None, "Private key of that certificate, PEM.")
    tls_ca: Path | None = setting(
        None, "Authorities for client certificates, PEM. Setting it requires client certificates."
    )
    mtls: tuple[ListenerAddress, ...] = setting(
        (ListenerAddress.REST, ListenerAddress.GRPC), "On which listeners `tls_ca` requires them."
    )
    insecure: bool = setting(
        False, "Allow plain text outside loopback. Tokens can then be read on the way."
    )
    oidc_issuer: str | None = setting(
        None, "The identity provider, exactly as it writes itself into `iss`."
    )
    oidc_client_id: str | None = setting(
        None, "The client people sign in as. Given to them by the discovery endpoint."
    )
    oidc_audience: str | None = setting(
        None,
        "What `aud` must contain: best a name of its own, which no ID token has. Not set: the same "
        "as `oidc_client_id`.",
    )
    oidc_id_claims: bool = setting(
        False,
        "Accept access tokens with claims of ID tokens (`nonce`, `at_hash`, `c_hash`): only for "
        "Dex, which writes them into both.",
    )
    oidc_jwks_uri: str | None = setting(
        None, "Where the provider's keys are, if not on the issuer's own origin."
    )
    oidc_ca: Path | None = setting(
        None, "Authorities to trust for the provider, PEM. Not set: those of the system."
    )
    oidc_hmac_secret: Secret | None = setting(
        None,
        "Shared secret for HS256, at least 32 bytes: development or break-glass. "
        "Not used while `oidc_issuer` is set.",
        env="LATTICE_OIDC_HMAC_SECRET",
    )
    munge: bool = setting(
        False,
        "Let people sign in by MUNGE on hosts of the cluster, as their Unix user. Needs "
        "`identity`, or `--single`.",
    )
    munge_socket: Path | None = setting(None, "The socket of munged. Not set: its usual one.")
    munge_hours: int = setting(
        12,
        "How long such a sign-in lasts, and at most one by a Slurm token. It is renewed in "
        "silence.",
        least=1,
        most=168,
    )
    slurm_tokens: bool = setting(
        False,
        "Let people sign in by a Slurm token (`scontrol token`), as its user. The sign-in ends "
        "with the token or before. Needs `identity`, or `--single`.",
    )
    slurm_tokens_url: str | None = setting(
        None,
        "The slurmrestd that judges such tokens, with `-a rest_auth/jwt` alone: `unix:/path`, "
        "`https://…`, or `http://…` on loopback. Not set: `slurm.rest_url`.",
    )
    public_names: tuple[str, ...] = setting(
        (),
        "Hosts at which people reach this server, beside those in its certificate: needed for "
        "signing in by MUNGE behind a proxy.",
    )
    administrators: tuple[str, ...] = setting(
        (),
        "Unix users who are system administrators when they have signed in by MUNGE or by a "
        "Slurm token.",
    )
    user_claim: str = setting("preferred_username", "The claim that names the Unix user.")
    tenant_claim: str = setting("tenant", "The claim that names the tenant.")
    service_accounts: Mapping[str, str] = setting(
        {}, "Which Unix user a service is, by its `sub`. One not named here owns nothing."
    )
    max_connections: int = setting(
        8192,
        "How many connections to `rest_listen` may be open at once. One more is closed at once.",
        least=16,
        most=1_000_000,
    )
    max_connections_per_address: int = setting(
        4096,
        "How many of them one address may have. Behind a proxy that is the proxy's address: "
        "set it to `max_connections` there, and limit clients in the proxy.",
        least=1,
        most=1_000_000,
    )
    metrics_listen: str = setting(
        "",
        "Where `/metrics` is served without sign-in: `unix:/run/lattice-server/metrics.sock`, or "
        "an address such as `127.0.0.1:9106`. Everybody who reaches it can read it. Empty: "
        "nowhere; `/metrics` on `rest_listen` needs a role.",
        env="LATTICE_METRICS_LISTEN",
    )
    metrics_names: bool = setting(
        False, "Show accounts, users and projects in `/metrics`. Names of jobs are never in it."
    )
    shutdown_grace_s: float = setting(
        10.0, "How long open requests may go on after a stop is asked for.", least=0, most=600
    )

    @property
    def auth(self) -> AuthMode:
        """The mode in force."""
        if self.oidc_issuer is not None:
            return AuthMode.ISSUER
        if self.oidc_hmac_secret is not None:
            return AuthMode.HMAC
        if self.munge:
            return AuthMode.MUNGE
        return AuthMode.SLURM if self.slurm_tokens else AuthMode.NONE

    @property
    def issues_tokens(self) -> bool:
        """True if people sign in with tokens that servers issue themselves."""
        return self.munge or self.slurm_tokens

    @property
    def audience(self) -> str | None:
        """What `aud` must contain, or None if nothing is configured."""
        return self.oidc_audience or self.oidc_client_id

    @property
    def claim_names(self) -> ClaimNames:
        return ClaimNames(self.user_claim, self.tenant_claim, self.service_accounts)

    @property
    def agent_address(self) -> Address:
        """The address that nodes dial."""
        return self.agent_advertise or self.agent_listen

    def lane_address(self, port: int) -> Address:
        """The address that nodes dial for lanes; `port` is where they are served."""
        if self.lane_advertise is not None:
            return self.lane_advertise
        host = self.lane_listen.host
        return Address(self.agent_address.host if self.lane_listen.is_wildcard else host, port)

    def requires_client_certificate(self, listener: ListenerAddress) -> bool:
        """True if callers of this listener must show a client certificate."""
        return self.tls_ca is not None and listener in self.mtls
