"""What a node can measure: one file a probe and a registry that is passed in."""
