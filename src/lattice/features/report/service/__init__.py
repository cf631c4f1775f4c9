"""The server's part: measuring a run, advising on it, and keeping what is known of it."""
