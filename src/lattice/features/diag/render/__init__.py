"""Pages of text: a diagnosis, and a picture of stacks. Pure."""
