"""The outside world behind the domain's ports: one folder an engine."""
