"""Whether the server is well and can serve (`health`), and its engines answer (`engines`)."""
