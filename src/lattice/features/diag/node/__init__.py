"""On a node: answers servers that request facts about a job, or its stacks."""
