"""One folder a capability; in it, one file a process. Features do not know each other."""
