"""The agent's side: it dials, holds one link, and serves sessions by ticket."""
