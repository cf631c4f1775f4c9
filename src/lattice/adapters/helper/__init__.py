"""Asking the root helper: the socket's other end, and behind it the submit gate and outputs."""
