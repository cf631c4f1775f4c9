"""OpenID Connect: signing people in, and checking what they bring back."""
