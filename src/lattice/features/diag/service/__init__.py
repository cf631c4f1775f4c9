"""On the server: a case is gathered, judged and told; stacks are taken and merged."""
