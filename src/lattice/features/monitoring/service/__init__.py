"""Counts in the background; a scrape reads the last result."""
