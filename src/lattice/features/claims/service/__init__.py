"""On the server: claims and releases, their records, and the loop that finishes what was left."""
