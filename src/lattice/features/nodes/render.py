"""Nodes as text: the list, the summary and the card. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from lattice.base.moment import age, moment, silence
from lattice.base.style import Style
from lattice.base.table import Cell, Column, fields, table
from lattice.base.text import inert
from lattice.domain.node import AgentLink, HealthState, Node, NodeAgent, NodeState
from lattice.domain.nodeset import NodeSet
from lattice.domain.operation import NodeAct
from lattice.domain.slices import SliceState, ports_text, slice_text, start_text
from lattice.domain.source import Source
from lattice.features.nodes.model import NodeActs, NodeCard, NodeOutcome, VclusterCard

_SIGNS = {
    NodeState.READY: ("●", "*", "green"),
    NodeState.DRAINING: ("◐", "~", "yellow"),
    NodeState.DRAINED: ("○", ".", "yellow"),
    NodeState.CLAIMED: ("◆", "#", "cyan"),
    NodeState.DEGRADED: ("◍", "!", "yellow"),
    NodeState.DOWN: ("✗", "x", "red"),
    NodeState.UNKNOWN: ("?", "?", "yellow"),
}


_SLICE_COLOURS = {
    SliceState.UNKNOWN: "yellow",
    SliceState.HEALTHY: "green",
    SliceState.WARNING: "yellow",
    SliceState.UNAVAILABLE: "red",
}
_SICK = {HealthState.WARNING: "yellow", HealthState.FAILURE: "red"}


def state_cell(node: Node, style: Style) -> tuple[str, str]:
    """Return glyph and word with a style; colour is never the only sign. Adds bad GPU health."""
    state, colour = _signed(node.state, style)
    health = node.agent.health if node.agent else HealthState.UNKNOWN
    if health not in _SICK:
        return state, colour
    ready = node.state is NodeState.READY
    return f"{state} ({health.value})", _SICK[health] if ready else colour


def _signed(state: NodeState, style: Style) -> tuple[str, str]:
    sign, plain, colour = _SIGNS[state]
    return f"{style.glyph(sign, plain)} {state.value}", colour


def node_table(nodes: Sequence[Node], style: Style, now: datetime) -> str:
    """Return one line per node; on a terminal the reason is below its row."""
    below = style.width is not None
    gpus = any(node.gpus for node in nodes)
    # If no agent was ever seen, the column is left out.
    agents = any(node.agent for node in nodes)
    reasons = any(reason_text(node, style, now) for node in nodes) and not below
    columns = [Column("NAME"), Column("STATE"), Column("SLURM", least=6)]
    columns += [Column("CPUS", right=True), Column("MEMORY", right=True)]
    columns += [Column("GPUS", right=True)] if gpus or style.wide else []
    columns += [Column("AGENT", least=8)] if agents else []
    columns += [Column("PARTITIONS", least=8), Column("SWITCH", least=4)]
    columns += [Column("BOOTED"), Column("VERSION")] if style.wide else []
    columns += [Column("REASON")] if reasons else []
    rows: list[list[Cell]] = []
    for node in nodes:
        row: list[Cell] = [node.name, state_cell(node, style), node.slurm_state]
        row += [_used(node.cpus_allocated, node.cpus), _memory(node)]
        row += [_used(node.gpus_allocated, node.gpus)] if gpus or style.wide else []
        row += [agent_text(node.agent, now)] if agents else []
        row += [",".join(node.partitions), node.switch]
        row += [moment(node.booted, style, now), node.slurm_version] if style.wide else []
        row += [reason_text(node, style, now)] if reasons else []
        rows.append(row)
    notes = [reason_text(node, style, now) for node in nodes] if below else []
    return table(columns, rows, style, notes)


def agent_text(agent: NodeAgent | None, now: datetime) -> str:
    if agent is None:
        return ""
    if agent.link is AgentLink.NEVER:
        return "never seen"
    if agent.link is AgentLink.LINKED:
        return f"linked to {agent.replica}" if agent.replica else "linked"
    if agent.since is None:
        return "lost"
    return f"lost {age(max(0.0, (now - agent.since).total_seconds()))}"


def outcome_lines(act: NodeAct, answer: NodeActs, style: Style) -> str:
    """Return one line per node: its state now, and whether it changed."""
    lines = []
    for each in answer.nodes:
        state = style.paint(*_signed(each.state, style))
        lines.append(f"{inert(each.name)}  {state}{_outcome_note(act, each)}\n")
    return "".join(lines)


def _outcome_note(act: NodeAct, each: NodeOutcome) -> str:
    if not each.changed:
        return "  (already; nothing was changed)"
    if act is NodeAct.DRAIN and each.state is NodeState.DRAINING:
        return "  (work still runs there)"
    if act is NodeAct.DRAIN and each.state is NodeState.DOWN:
        return "  (and stays out of service when it comes back)"
    if each.state is NodeState.UNKNOWN:
        return "  (it does not answer Slurm)"
    return ""


_UNDO = {
    NodeAct.DRAIN: "undrain",
    NodeAct.UNDRAIN: "drain",
    NodeAct.DISABLE: "enable",
    NodeAct.ENABLE: "disable",
}


def undo_text(act: NodeAct, answer: NodeActs) -> str:
    changed = [each.name for each in answer.nodes if each.changed]
    if not changed:
        return "Nothing was changed."
    names = inert(NodeSet(changed).fold())
    why = " --reason …" if _UNDO[act] in {"drain", "disable"} else ""
    waits = any(each.state is NodeState.DRAINING for each in answer.nodes)
    when = " once drained" if act is NodeAct.DRAIN and waits else ""
    return f"To take it back{when}: lattice admin {_UNDO[act]} {names}{why}"


def reason_text(node: Node, style: Style, now: datetime) -> str:
    """Return why it is not ready, with author and time, its claim, and the faults of its GPUs."""
    parts = (_reason(node, style, now), claim_text(node), health_text(node))
    return "; ".join(each for each in parts if each)


def claim_text(node: Node) -> str:
    """Return by whom it is claimed, if the caller may know."""
    return f"claimed by {node.claimed_by}" if node.claimed_by else ""


def _reason(node: Node, style: Style, now: datetime) -> str:
    if not node.reason:
        return ""
    by = f" by {node.reason_by}" if node.reason_by else ""
    when = f" since {moment(node.reason_at, style, now)}" if node.reason_at else ""
    return f"{node.reason}{' —' if by or when else ''}{by}{when}"


def health_text(node: Node) -> str:
    """Return the first fault of its GPUs and the number of others, if any."""
    agent = node.agent
    if agent is None or agent.health not in _SICK:
        return ""
    more = len(agent.health_words) - 1
    first = agent.health_words[0] if agent.health_words else f"GPUs: {agent.health.value}"
    return f"{first} (and {more} more)" if more > 0 else first


def _used(used: int, total: int) -> str:
    return f"{used}/{total}" if total else ""


def _memory(node: Node) -> str:
    if not node.memory_bytes:
        return ""
    return f"{node.memory_allocated_bytes / 2**30:.0f}/{node.memory_bytes / 2**30:.0f}G"


def summary_table(nodes: Iterable[Node], by: str, style: Style) -> str:
    """Return node counts per state and resources in use, for each partition or switch."""
    groups: dict[str, list[Node]] = {}
    for node in nodes:
        names = node.partitions if by == "partition" else (node.switch,)
        for name in names or ("",):
            groups.setdefault(name, []).append(node)
    columns = [Column(by.upper()), Column("NODES", right=True)]
    columns += [Column(state.value.upper(), right=True) for state in NodeState]
    columns += [Column("CPUS", right=True), Column("GPUS", right=True)]
    rows: list[list[Cell]] = []
    for name, members in sorted(groups.items()):
        counts = [sum(node.state is state for node in members) for state in NodeState]
        row: list[Cell] = [name, str(len(members)), *map(str, counts)]
        row.append(_used(sum(n.cpus_allocated for n in members), sum(n.cpus for n in members)))
        row.append(_used(sum(n.gpus_allocated for n in members), sum(n.gpus for n in members)))
        rows.append(row)
    return table(columns, rows, style)


def vcluster_table(vclusters: Sequence[VclusterCard], style: Style) -> str:
    """Return one line per view: where its work runs, and how its nodes are."""
    columns = [Column("NAME"), Column("KIND"), Column("PARTITION"), Column("QOS")]
    columns += [Column("NODES", right=True), Column("STATE")]
    rows: list[list[Cell]] = [
        [
            inert(each.name),
            each.kind.value,
            inert(each.partition),
            inert(each.qos) or "any",
            str(each.nodes),
            _states(each),
        ]
        for each in vclusters
    ]
    return table(columns, rows, style)


def _states(view: VclusterCard) -> Cell:
    if not view.nodes:
        return "no nodes", "yellow"
    text = ", ".join(f"{each.nodes} {each.state.value}" for each in view.states)
    ready = any(each.state in {NodeState.READY, NodeState.CLAIMED} for each in view.states)
    return text, "green" if ready else "red"


def source_notes(sources: Iterable[Source], style: Style, now: datetime) -> list[str]:
    """Return a line for each source that does not answer."""
    notes = []
    for source in sources:
        if source.ok:
            continue
        name = inert(source.name)
        if source.as_of is None:
            notes.append(f"{name} has not answered yet; what only it knows is missing here.")
            continue
        shown = moment(source.as_of, style, now)
        notes.append(f"{name} {silence(source.age_s)}; this is the state as of {shown}.")
    return notes


def _agent_line(agent: NodeAgent | None, style: Style, now: datetime) -> str:
    text = agent_text(agent, now)
    if agent is None or agent.since is None:
        return text
    version = f", version {agent.version}" if agent.version else ""
    return f"{text}, since {moment(agent.since, style, now)}{version}"


def _health_cell(node: Node) -> Cell:
    agent = node.agent
    if agent is None or agent.health is HealthState.UNKNOWN:
        return ""
    text = "; ".join((agent.health.value, *agent.health_words))
    return text, _SICK.get(agent.health, "green")


def _slice_lines(node: Node) -> list[tuple[str, Cell]]:
    """Return the slices with the host's side; a node has some only for operators."""
    lines: list[tuple[str, Cell]] = []
    for each in node.slices:
        colour = _SLICE_COLOURS[each.guest.state]
        lines.append(("Slice" if not lines else "", (inert(slice_text(each.guest)), colour)))
        host = each.host
        parts = [f"guest at {host.address}"] if host.address else []
        parts += [f"bridge {host.bridge}"] if host.bridge else []
        parts += [f"Netdata {host.netdata}"] if host.netdata else []
        parts += [ports_text(each.guest)] if each.guest.ports else []
        lines.append(("", inert("; ".join(parts))))
        lines.append(("", inert(start_text(each.guest))))
    return lines


def card(answer: NodeCard, style: Style, now: datetime) -> str:
    """Return one node as a card that fits one screen."""
    node = answer.node
    state, colour = state_cell(node, style)
    head = f"{style.paint(inert(node.name), 'bold')}  {style.paint(state, colour)}\n"
    facts: list[tuple[str, Cell]] = [
        ("Slurm", node.slurm_state),
        ("Agent", _agent_line(node.agent, style, now)),
        ("Reason", (_reason(node, style, now), "yellow")),
        ("Claimed by", inert(node.claimed_by)),
        ("Partitions", ", ".join(node.partitions)),
        ("CPUs", f"{node.cpus_allocated} of {node.cpus} in use" if node.cpus else ""),
        ("Memory", f"{_memory(node)} allocated" if node.memory_bytes else ""),
        ("GPUs", f"{node.gpus_allocated} of {node.gpus} in use" if node.gpus else ""),
        ("Health", _health_cell(node)),
        ("Agent lacks", ("; ".join(node.agent.lacks) if node.agent else "", "yellow")),
        *_slice_lines(node),
        ("Switch", node.switch),
        ("Booted", moment(node.booted, style, now) if node.booted else ""),
        ("Version", node.slurm_version),
        ("Yours", ", ".join(answer.allocations) or "none of your allocations run here"),
    ]
    return head + fields(facts, style)
