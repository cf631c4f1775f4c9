"""Output of jobs as text for people. Pure."""
