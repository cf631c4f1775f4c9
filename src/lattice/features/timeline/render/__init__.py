"""A timeline as text and as a page."""
