"""Allocations as text: the list, the card, the past, the lines of a watch. Pure."""
