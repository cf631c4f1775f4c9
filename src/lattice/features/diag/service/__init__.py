"""On the server: builds and judges a case; takes and merges stacks."""
