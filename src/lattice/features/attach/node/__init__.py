"""Attach on the node: frames between the link and the holder of a terminal."""
