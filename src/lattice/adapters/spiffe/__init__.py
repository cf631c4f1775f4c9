"""SPIFFE: the Workload API of a node's SPIRE agent, and the authorities of a trust domain."""
