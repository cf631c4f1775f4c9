"""The only mapping between the feature's dataclasses and its protobuf messages."""

from __future__ import annotations

from lattice.features.agents.model import Agent, AgentList, Credentials, Enrolment
from lattice.wire.convert import message_of, moment
from lattice.wire.v1 import agents_pb2 as pb


def enrolment_message(answer: Enrolment) -> pb.Enrolment:
    """A token as it crosses the wire."""
    return message_of(answer, pb.Enrolment)


def credentials_message(answer: Credentials) -> pb.Credentials:
    """What a node gets, as it crosses the wire."""
    return message_of(answer, pb.Credentials)


def credentials_of(message: pb.Credentials) -> Credentials:
    """The same, as the node reads it."""
    return Credentials(
        cluster=message.cluster,
        node=message.node,
        certificate=message.certificate,
        authorities=message.authorities,
        grant_keys=tuple(message.grant_keys),
        replicas=tuple(message.replicas),
        not_after=moment(message.not_after),
    )


def list_message(answer: AgentList) -> pb.AgentList:
    """A list as it crosses the wire."""
    return message_of(answer, pb.AgentList)


def agent_message(answer: Agent) -> pb.Agent:
    """One agent as it crosses the wire."""
    return message_of(answer, pb.Agent)
