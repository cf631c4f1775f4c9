"""Wires the feature: its services, and the loop that drains failed nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict

from lattice.base.operation import AnyBinding
from lattice.base.supervisor import Loop, OnFailure
from lattice.domain.operation import NodeAct
from lattice.features.nodes.operations import ACTS, GET_NODE, LIST_NODES, LIST_VCLUSTERS
from lattice.features.nodes.service.drains import DrainTerms, FailedNodeDrain, in_service
from lattice.features.nodes.service.nodes import NodeOperations, NodeService
from lattice.foundation.foundation import Foundation
from lattice.foundation.wiring import Wiring


def bindings(service: NodeService, operations: NodeOperations) -> tuple[AnyBinding, ...]:
    return (
        LIST_NODES.to(
            lambda actor, asked: service.nodes(actor, frozenset(asked.states), asked.partition)
        ),
        GET_NODE.to(lambda actor, asked: service.node(actor, asked.name)),
        LIST_VCLUSTERS.to(lambda _actor, _asked: service.vclusters()),
        *(_act(operations, each) for each in NodeAct),
    )


def _act(operations: NodeOperations, act: NodeAct) -> AnyBinding:
    return ACTS[act].to(
        lambda actor, asked: operations.operate(actor, act, asked.name, asked.reason)
    )


def wire(
    foundation: Foundation,
    terms: DrainTerms | None = None,
    warnings: Callable[[], Mapping[str, str]] = dict,
) -> Wiring:
    """Return the feature's part of the server.

    With `terms` a loop drains failed nodes; with None the site drains nodes itself. `warnings` are
    those of active checks, by node.
    """
    service = NodeService(
        foundation.scheduler,
        foundation.presences,
        lambda: foundation.views,
        foundation.claims,
        warnings,
    )
    operations = NodeOperations(foundation.scheduler, foundation.operator, foundation.journal)
    loops = () if terms is None else (_draining(foundation, terms),)
    return Wiring(bindings=bindings(service, operations), loops=loops)


def _draining(foundation: Foundation, terms: DrainTerms) -> Loop:
    drain = FailedNodeDrain(
        foundation.presences,
        lambda: in_service(foundation.scheduler),
        foundation.operator,
        foundation.state,
        foundation.journal,
        foundation.clock,
        terms,
    )
    foundation.own_metrics.watch(
        lambda: {f"failed_nodes_{name}": count for name, count in asdict(drain.counts).items()}
    )
    foundation.log.info(
        "failed nodes are drained", after_s=terms.after_s, most_per_hour=terms.most_per_hour
    )
    return Loop("drain failed nodes", drain.run, OnFailure.RESTART)
