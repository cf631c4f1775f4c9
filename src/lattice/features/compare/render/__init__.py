"""A comparison as text with a table and a plot, as CSV, and as one HTML page. Pure."""
