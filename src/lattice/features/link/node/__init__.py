"""The agent's side: it dials, keeps one link, and serves sessions it was handed tickets for."""
