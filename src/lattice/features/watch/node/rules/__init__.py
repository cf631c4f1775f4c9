"""The rules of WATCH-2, a file each. Pure."""
