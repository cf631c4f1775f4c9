"""On the server: shares, read records, and the service over both."""
