"""The feature's commands."""
