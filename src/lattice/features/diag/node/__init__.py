"""On a node: the answer to a server that asks for a job's surroundings, or for its stacks."""
