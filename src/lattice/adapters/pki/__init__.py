"""The cluster's own authority: certificates of nodes and replicas, and the files they live in."""
