"""A diagnosis and merged stacks as pages of text. Pure."""
