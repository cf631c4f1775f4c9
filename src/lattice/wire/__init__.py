"""The wire: generated stubs (never edited by hand) and what both ends of it share."""
