"""Allocations as text: the list, the card, history and the lines of a watch. Pure."""
