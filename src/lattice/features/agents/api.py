"""The feature's verbs as calls to the server. No I/O here; the SDK makes the calls."""

from __future__ import annotations

import json
from urllib.parse import quote

from lattice.base.call import Call
from lattice.features.agents.model import Agent, AgentList, Enrolment


def list_agents() -> Call[AgentList]:
    """Every agent, and whether it is believed."""
    return Call("GET", "/v1/agents", AgentList)


def create_enrolment(node: str, life_s: int = 0) -> Call[Enrolment]:
    """A token with which one node may enrol once.

    Asked twice, there is a second one; the first, which nobody has, runs out unused.
    """
    body = json.dumps({"node": node, "life_s": life_s}).encode()
    return Call("POST", "/v1/agents/enrolments", Enrolment, body=body, idempotent=True)


def revoke_agent(node: str, reason: str) -> Call[Agent]:
    """Refuse every certificate the node has now."""
    body = json.dumps({"reason": reason}).encode()
    path = f"/v1/agents/{quote(node, safe='')}/revoke"
    return Call("POST", path, Agent, body=body, idempotent=True)


def restore_agent(node: str) -> Call[Agent]:
    """Take back both. A repetition finds nothing to take back, and that is no error."""
    return Call("POST", f"/v1/agents/{quote(node, safe='')}/restore", Agent, idempotent=True)
