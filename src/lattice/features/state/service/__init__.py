"""Quorum, backups, their schedule, and the import of records into an empty state."""
