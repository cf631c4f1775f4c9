"""The rules of WATCH-2, one file each. Pure."""
