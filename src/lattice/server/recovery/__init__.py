"""Programs for a state that is not served: restoring a backup, and moving to the full form."""
