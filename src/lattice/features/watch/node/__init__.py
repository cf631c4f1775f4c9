"""On the node: snapshots of a job in, alerts and signs of progress out. Knows no clock."""
