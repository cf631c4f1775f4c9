"""OpenID Connect: signs people in, and verifies their tokens."""
