"""The measurements of a node: one file for each probe, and a registry that runs them."""
