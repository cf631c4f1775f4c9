"""The rules of WATCH-2, Pure."""
