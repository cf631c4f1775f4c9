"""The checks of signing in. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from lattice.features.doctor.model import Check, Topic
from lattice.features.doctor.service.facts import SignInFacts
from lattice.features.doctor.service.measured import Inspected, milliseconds

MODE = Topic("sign_in.mode", "callers prove who they are")
KEYS = Topic("sign_in.keys", "the identity provider gives its keys")
MUNGE = Topic("sign_in.munge", "munged answers")
SLURM_TOKENS = Topic("sign_in.slurm_tokens", "slurmrestd judges Slurm tokens")
ENCRYPTED = Topic("sign_in.encrypted", "tokens are encrypted on their way")
DEVELOPMENT = Topic("sign_in.development", "no development token is in force")


@dataclass(frozen=True, slots=True, kw_only=True)
class IdentityFacts:
    settings: SignInFacts
    keys: Inspected[int]
    munge: Inspected[str]
    token_judge: Inspected[str]


def identity_checks(facts: IdentityFacts) -> Iterator[Check]:
    yield mode(facts.settings)
    yield keys(facts.keys)
    yield munge(facts.munge)
    yield slurm_tokens(facts.token_judge)
    yield encrypted(facts.settings)
    yield development(facts.settings)


def mode(settings: SignInFacts) -> Check:
    remedy = "Set api.oidc_issuer, api.oidc_client_id and api.oidc_audience."
    if settings.mode == "none":
        return MODE.warning("every caller is the server's own user (no sign-in)", remedy)
    if settings.mode == "hmac":
        return MODE.warning("by a shared secret (api.oidc_hmac_secret), for development", remedy)
    ways = (
        (settings.mode == "issuer", "by an identity provider"),
        (settings.munge, "by MUNGE"),
        (settings.slurm_tokens, "by a Slurm token"),
    )
    return MODE.ok(" and ".join(text for offered, text in ways if offered))


def keys(found: Inspected[int]) -> Check:
    if found.off:
        return KEYS.off(found.off)
    if found.value is None:
        return KEYS.failed(
            found.reason,
            "Check the identity provider, the network to it, api.oidc_issuer and api.oidc_ca; "
            "people who are signed in go on with the keys that the server has.",
        )
    plural = "s" if found.value != 1 else ""
    return KEYS.ok(f"{found.value} key{plural} in {milliseconds(found.took_s)}")


def munge(found: Inspected[str]) -> Check:
    if found.off:
        return MUNGE.off(found.off)
    if found.value is None:
        return MUNGE.failed(found.reason, "On the server's host: systemctl restart munge.")
    return MUNGE.ok(f"a credential of {found.value} was read in {milliseconds(found.took_s)}")


def slurm_tokens(found: Inspected[str]) -> Check:
    if found.off:
        return SLURM_TOKENS.off(found.off)
    if found.value is None:
        return SLURM_TOKENS.failed(
            found.reason,
            "Name a slurmrestd that runs with -a rest_auth/jwt alone: api.slurm_tokens_url.",
        )
    return SLURM_TOKENS.ok(
        f"{found.value} answers nobody without a token ({milliseconds(found.took_s)})"
    )


def encrypted(settings: SignInFacts) -> Check:
    if settings.encrypts:
        return ENCRYPTED.ok("TLS 1.2 or newer")
    if settings.loopback:
        return ENCRYPTED.ok("plain text, on loopback alone")
    return ENCRYPTED.warning(
        "plain text outside loopback (api.insecure): tokens can be read",
        "Set api.tls_cert and api.tls_key, and remove api.insecure.",
    )


def development(settings: SignInFacts) -> Check:
    if not settings.development_token:
        return DEVELOPMENT.ok("none is configured")
    return DEVELOPMENT.warning(
        "any agent may enrol as any node with one token (identity.development_token)",
        "Remove identity.development_token and LATTICE_AGENT_TOKEN; enrol nodes with lattice admin "
        "enrol NODE.",
    )
