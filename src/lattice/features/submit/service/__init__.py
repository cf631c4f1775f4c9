"""The use cases: submit once, cancel what is one's own."""
