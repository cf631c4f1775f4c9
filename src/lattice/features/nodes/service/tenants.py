"""Whether a node serves one tenant and no other. Pure.

A node serves a tenant if one of its partitions admits an account of it, or work of it is there.
What can't be told counts as another tenant: an account that is not known, a partition that admits
every account, a node without partitions.
"""

from __future__ import annotations

from collections.abc import Mapping

from lattice.domain.node import Node
from lattice.domain.nodeset import NodeSet
from lattice.domain.operation import Admitted
from lattice.domain.scheduler import LiveCluster


def other_tenant_on(
    node: Node, tenant: str, cluster: LiveCluster, admitted: Mapping[str, Admitted]
) -> str:
    """Why the node is not this tenant's alone, or an empty text."""
    if not node.partitions:
        return f"{node.name} belongs to no partition"
    for name in sorted(node.partitions):
        accounts = admitted.get(name)
        if accounts is None:
            return f"the partition {name} of {node.name} admits every account"
        if any(cluster.accounts.tenant_of(each) != tenant for each in accounts):
            return f"the partition {name} of {node.name} admits accounts of other tenants"
    for work in cluster.allocations:
        if not work.nodes or work.state.finished:
            continue
        if cluster.accounts.tenant_of(work.account) != tenant and _is_on(node.name, work.nodes):
            return f"work of another tenant is on {node.name}"
    return ""


def _is_on(name: str, nodes: str) -> bool:
    return name in NodeSet.parse(nodes)
