"""On the server: what is asked of nodes and done to them, and the draining of those that failed."""
