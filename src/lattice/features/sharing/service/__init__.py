"""What the server does for the feature: shares, read records, and the use case over both."""
