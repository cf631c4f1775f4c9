"""The operations of the feature, and the functions that build calls of them. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from lattice.base.call import Call
from lattice.base.operation import Operation
from lattice.domain.request_fields import EmptyRequest
from lattice.features.identity.model import AuthDiscovery, Identity, SignedIn


@dataclass(frozen=True, slots=True, kw_only=True)
class MungeCredential:
    """What MUNGE made of a claim (`lattice.domain.munge_claim`)."""

    credential: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmToken:
    """What `scontrol token` prints after `SLURM_JWT=`."""

    token: str = field(repr=False)


_SERVICE = "lattice.v1.IdentityService/"

GET_AUTH_DISCOVERY = Operation(
    rpc=_SERVICE + "GetAuthDiscovery",
    method="GET",
    path="/auth/discovery",
    request=EmptyRequest,
    answer=AuthDiscovery,
)
SIGN_IN_BY_MUNGE = Operation(
    rpc=_SERVICE + "SignInByMunge",
    method="POST",
    path="/auth/munge",
    request=MungeCredential,
    answer=SignedIn,
    largest_body_bytes=8 * 1024,
)
SIGN_IN_BY_SLURM_TOKEN = Operation(
    rpc=_SERVICE + "SignInBySlurmToken",
    method="POST",
    path="/auth/slurm",
    request=SlurmToken,
    answer=SignedIn,
    largest_body_bytes=8 * 1024,
)
WHO_AM_I = Operation(
    rpc=_SERVICE + "WhoAmI",
    method="GET",
    path="/auth/whoami",
    request=EmptyRequest,
    answer=Identity,
)


def auth_discovery() -> Call[AuthDiscovery]:
    """Get the provider and the client id to sign in with; needs no token."""
    call = GET_AUTH_DISCOVERY.call(EmptyRequest())
    return call._replace(path="/api" + call.path, anonymous=True)


def sign_in_by_munge(credential: str) -> Call[SignedIn]:
    """Get a token for a MUNGE credential; needs no token."""
    return SIGN_IN_BY_MUNGE.call(MungeCredential(credential=credential))._replace(anonymous=True)


def sign_in_by_slurm_token(token: str) -> Call[SignedIn]:
    """Get a token for a Slurm token; needs no other."""
    return SIGN_IN_BY_SLURM_TOKEN.call(SlurmToken(token=token))._replace(anonymous=True)


def whoami() -> Call[Identity]:
    """Get the caller's identity as the server sees it."""
    return WHO_AM_I.call(EmptyRequest())


SDK: Mapping[str, Callable[..., object]] = {"whoami": whoami, "discovery": auth_discovery}
"""Method names of the SDK, and the functions that build their calls."""
