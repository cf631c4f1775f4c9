"""The cluster's own authority: certificates of nodes and replicas, and their files."""
