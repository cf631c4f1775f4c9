"""Every fixed address and port of a lab, in one list.

They are inside the lab's own network namespaces, so two labs use the same ones and never meet.
"""

from __future__ import annotations

from typing import Final

CONTROL_HOST: Final = "lab"
CONTROL: Final = "10.77.0.1"
CONTROL_SECOND: Final = "10.77.0.2"
PREFIX_LENGTH: Final = 24

NODES: Final = {"n1": "10.77.0.11", "n2": "10.77.0.12", "n3": "10.77.0.13"}
VM_NODE: Final = "v1"
VM_ADDRESS: Final = "10.77.0.21"

SERVER_ADDRESSES: Final = (CONTROL, CONTROL_SECOND)
SERVER_REST_PORT: Final = 8080
SERVER_GRPC_PORT: Final = 50051
SERVER_AGENT_PORT: Final = 50052
SERVER_LANE_PORT: Final = 50053
SERVER_METRICS_PORT: Final = 9106

SLURMCTLD_PORT: Final = 6817
SLURMD_PORT: Final = 6818
SLURMDBD_PORT: Final = 6819
SLURMRESTD_PORT: Final = 6820
MARIADB_PORT: Final = 13306

ETCD_CLIENT_PORTS: Final = (23791, 23792, 23793)
ETCD_PEER_PORTS: Final = (23801, 23802, 23803)
ETCD_HEALTH_PORTS: Final = (23811, 23812, 23813)
VICTORIAMETRICS_PORT: Final = 28428
OIDC_PORT: Final = 24000
OIDC_ISSUER: Final = f"http://127.0.0.1:{OIDC_PORT}"

SEAWEED_MASTER_PORT: Final = 21333
SEAWEED_VOLUME_PORT: Final = 21380
SEAWEED_FILER_PORT: Final = 21388
SEAWEED_S3_PORT: Final = 21383


def node_address(node: str) -> str:
    return VM_ADDRESS if node == VM_NODE else NODES[node]


def hosts_file() -> str:
    """The /etc/hosts of the control and node namespaces."""
    lines = ["127.0.0.1 localhost", f"{CONTROL} {CONTROL_HOST}"]
    lines += [f"{address} {node}" for node, address in NODES.items()]
    return "\n".join([*lines, f"{VM_ADDRESS} {VM_NODE}", ""])
