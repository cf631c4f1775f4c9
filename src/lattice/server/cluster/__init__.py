"""The server among its replicas: agreed state, limits, presence of nodes, agents and links."""
