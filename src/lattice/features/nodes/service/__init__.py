"""On the server: queries and acts on nodes, and the automatic drain of failed nodes."""
