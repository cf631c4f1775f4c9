"""On the server: measures a run, gives advice, and stores its summary."""
