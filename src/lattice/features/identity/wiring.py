"""Wires the feature: its service and its operations."""

from __future__ import annotations

from grpc import aio

from lattice.access.job_tokens import JobTokens
from lattice.base.caller_address import caller_address
from lattice.features.identity.model import AuthDiscovery
from lattice.features.identity.operations import (
    GET_AUTH_DISCOVERY,
    SIGN_IN_BY_MUNGE,
    SIGN_IN_BY_SLURM_TOKEN,
    WHO_AM_I,
)
from lattice.features.identity.rpc import JobIdentityRpc
from lattice.features.identity.service.identity import IdentityService
from lattice.features.identity.service.job_identity import JobIdentityService
from lattice.features.identity.service.munge import MungeSignIn
from lattice.features.identity.service.slurm_token import SlurmSignIn
from lattice.foundation.foundation import Foundation
from lattice.foundation.wiring import Wiring
from lattice.wire.v1.identity_pb2_grpc import add_JobIdentityServiceServicer_to_server


def _job_identity(foundation: Foundation) -> JobIdentityService | None:
    """None where no agents are served."""
    nodes, scheduler = foundation.nodes, foundation.scheduler
    if nodes is None:
        return None
    tokens = JobTokens(nodes.signer, foundation.clock, lambda: scheduler.cluster_name)
    return JobIdentityService(
        tokens, nodes.attempts.of, scheduler, foundation.locks, foundation.journal
    )


def wire(
    foundation: Foundation,
    discovery: AuthDiscovery,
    munge: MungeSignIn | None = None,
    slurm: SlurmSignIn | None = None,
) -> Wiring:
    """Return the feature's part of the server."""
    service = IdentityService(foundation.scheduler, discovery, munge, slurm)
    jobs = _job_identity(foundation)

    def offer_agents(server: aio.Server) -> None:
        if jobs is not None:
            add_JobIdentityServiceServicer_to_server(JobIdentityRpc(jobs), server)

    return Wiring(
        offer_agents=offer_agents,
        bindings=(
            GET_AUTH_DISCOVERY.to(lambda _actor, _asked: service.discovery()),
            SIGN_IN_BY_MUNGE.to(
                lambda _, asked: service.sign_in_by_munge(asked.credential, caller_address())
            ),
            SIGN_IN_BY_SLURM_TOKEN.to(
                lambda _, asked: service.sign_in_by_slurm_token(asked.token, caller_address())
            ),
            WHO_AM_I.to(lambda actor, _: service.whoami(actor)),
        ),
    )
