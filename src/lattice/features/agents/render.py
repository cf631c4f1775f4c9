"""Agents as text. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from datetime import datetime

from lattice.base.moment import age, moment
from lattice.base.sizes import size_text
from lattice.base.style import Style
from lattice.base.table import Cell, Column, table
from lattice.base.text import inert
from lattice.domain.node import AgentLink
from lattice.features.agents.model import Agent, Enrolment

_SOON_S = 4 * 3600
CLOCK_OFF_S = 2.0
"""Above it times of a node mislead people; grants tolerate more."""


KEY_USE = (
    "On the node, or in its image, put this line into /etc/lattice/join.key (owner root, mode "
    "0600), then:\n"
    "  systemctl enable --now lattice-enrol lattice-helper.socket lattice-agent"
)


def key_terms(made: Enrolment, now: datetime, *, again: bool, networks: Sequence[str] = ()) -> str:
    """For whom the join key is good, how often, for how long and from where."""
    left = age((made.expires - now).total_seconds() + 1)
    often = "at each boot" if again else "once for each node"
    origin = f" from {inert(', '.join(networks))}" if networks else ""
    return f"Join key for {inert(made.node)}, good {often} within {left}{origin}:"


def enrolment(made: Enrolment, now: datetime) -> str:
    """What to run on the node, with the token."""
    left = age((made.expires - now).total_seconds() + 1)
    node = shlex.quote(inert(made.node))
    return (
        f"Token for {inert(made.node)}, good once within {left}:\n"
        f"\n"
        f"  {inert(made.token)}\n"
        f"\n"
        f"On the node, put it into a file only the agent's user can read, then:\n"
        f"\n"
        f"  lattice-agent --node-id {node} --quorum-endpoint https://HOST:50051 "
        f"--bootstrap-ca CA.pem --enrol-token-file FILE\n"
    )


def agent_table(agents: Sequence[Agent], style: Style, now: datetime) -> str:
    """One line for each agent; the reason for a refusal comes last."""
    names = ["NODE", "AGENT", "HELPER", "SPOOL", "CLOCK", "VERSION"]
    names += ["TO", "SINCE", "DISK", "EBPF"] if style.wide else []
    columns = [*map(Column, names), Column("CERTIFICATE", least=8), Column("TRUST", least=8)]
    rows = [_row(each, style, now) for each in agents]
    lines = [f"{inert(each.node)}: {inert(lack)}" for each in agents for lack in each.lacks]
    below = "".join(f"{style.paint(style.glyph('!', '!'), 'yellow')} {line}\n" for line in lines)
    return table(columns, rows, style) + below


def _row(agent: Agent, style: Style, now: datetime) -> list[Cell]:
    facts = agent.facts
    found: list[Cell] = [
        agent.node,
        _link(agent, style),
        _sound(facts.helper, style, "away"),
        _size(facts.spool_bytes),
        _clock(facts.clock_ahead_s),
        agent.version,
    ]
    if style.wide:
        found += [
            agent.replica,
            moment(agent.since, style, now) if agent.since else "",
            f"{_size(facts.free_bytes)} free" if facts.free_bytes is not None else "",
            _sound(facts.latency, style, "off"),
        ]
    return [*found, _certificate(agent, now), trust(agent, style, now)]


def _sound(state: str, style: Style, otherwise: str) -> tuple[str, str]:
    if not state:
        return "", ""
    if state == "ok":
        return f"{style.glyph('✓', '+')} ok", "green"
    return f"{style.glyph('✗', 'x')} {otherwise}", "red"


def _size(size_bytes: int | None) -> str:
    """About how much: an agent reports a size again when it has changed much."""
    if size_bytes is None:
        return ""
    return f"~{size_text(size_bytes)}" if size_bytes else "0"


def _clock(ahead_s: float | None) -> tuple[str, str]:
    if ahead_s is None:
        return "", ""
    return f"{ahead_s:+.1f} s", "yellow" if abs(ahead_s) > CLOCK_OFF_S else ""


def trust(agent: Agent, style: Style, now: datetime) -> tuple[str, str]:
    """Whether the node is trusted; if not, since when, by whom and why."""
    if agent.quarantine:
        when = f" since {moment(agent.quarantined, style, now)}" if agent.quarantined else ""
        return f"{style.glyph('✗', 'x')} quarantine{when}: {agent.quarantine}", "red"
    if agent.revoked is not None:
        sign = style.glyph("✗", "x")
        when = moment(agent.revoked, style, now)
        return f"{sign} revoked {when} by {agent.revoked_by}: {agent.revoked_reason}", "red"
    return f"{style.glyph('●', '*')} trusted", "green"


def _link(agent: Agent, style: Style) -> tuple[str, str]:
    if agent.link is AgentLink.LINKED:
        return f"{style.glyph('●', '*')} linked", "green"
    if agent.link is AgentLink.LOST:
        return f"{style.glyph('○', '.')} lost", "yellow"
    return agent.link.value, ""


def _certificate(agent: Agent, now: datetime) -> tuple[str, str]:
    if agent.certificate_expires is None:
        return "none", ""
    left_s = (agent.certificate_expires - now).total_seconds()
    if left_s <= 0:
        return f"expired {age(-left_s)} ago", "red"
    return f"{age(left_s)} left", "yellow" if left_s < _SOON_S else ""
