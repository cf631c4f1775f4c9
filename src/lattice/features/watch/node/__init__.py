"""On the node: turns snapshots of a job into alerts and signs of progress. Uses no clock."""
