"""Clients of the root helper: its socket, the submit gate, outputs, probes and terminals."""
