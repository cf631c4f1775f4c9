"""Asking the root helper: the socket's other end, and the submit gate behind its port."""
