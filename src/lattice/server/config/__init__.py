"""The configuration of the server: its sections, how it is read, and its rules."""
